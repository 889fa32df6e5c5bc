// Tensors as safetensors files: 8 bytes of header length, a JSON header, the data. Little-endian, C-contiguous.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace harness {

enum class DType { kBool, kUInt8, kInt8, kInt16, kInt32, kInt64, kFloat16, kFloat32, kFloat64 };

std::size_t item_size(DType dtype);
const char* safetensors_name(DType dtype);
DType dtype_from_safetensors(const std::string& name);

// A tensor that lies in memory owned by someone else (the mapped file, an engine's buffer).
struct TensorView {
  std::string name;
  DType dtype{};
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

struct Tensor {
  std::string name;
  DType dtype{};
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

// Elements of a shape; throws on a negative dimension or overflow.
std::size_t element_count(const std::vector<std::int64_t>& shape);

// A safetensors file mapped read-only, so that inputs that are not used cost no memory.
class TensorFile {
 public:
  explicit TensorFile(const std::string& path);
  ~TensorFile();
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  const TensorView& at(const std::string& name) const;

 private:
  void* map_ = nullptr;
  std::size_t length_ = 0;
  std::map<std::string, TensorView> tensors_;
};

// Streams tensors to a file, so that no more than one output is held in memory; the header is written last, into
// the space that `reserve` bytes at the front leave for it.
class TensorWriter {
 public:
  TensorWriter(std::string path, std::size_t reserve);
  ~TensorWriter();
  TensorWriter(const TensorWriter&) = delete;
  TensorWriter& operator=(const TensorWriter&) = delete;

  void add(const Tensor& tensor);
  // Writes the header, flushes to disk and renames to the final path. Returns the file's size in bytes.
  std::size_t finish();

 private:
  void write(const void* data, std::size_t bytes);
  std::string path_, temporary_;
  int descriptor_ = -1;
  std::size_t reserve_, offset_ = 0;
  std::string header_ = "{";
};

}  // namespace harness
