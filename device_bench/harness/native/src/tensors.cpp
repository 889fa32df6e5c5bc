#include "tensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "failure.h"

namespace harness {
namespace {

struct DTypeFacts {
  DType dtype;
  const char* name;
  std::size_t size;
};
constexpr std::array<DTypeFacts, 9> kDTypes{{{DType::kBool, "BOOL", 1},
                                              {DType::kUInt8, "U8", 1},
                                              {DType::kInt8, "I8", 1},
                                              {DType::kInt16, "I16", 2},
                                              {DType::kInt32, "I32", 4},
                                              {DType::kInt64, "I64", 8},
                                              {DType::kFloat16, "F16", 2},
                                              {DType::kFloat32, "F32", 4},
                                              {DType::kFloat64, "F64", 8}}};

const DTypeFacts& facts(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

[[noreturn]] void fail_errno(const char* stage, const std::string& what) {
  throw Failure(stage, what + ": " + std::strerror(errno));
}

}  // namespace

std::size_t item_size(DType dtype) { return facts(dtype).size; }
const char* safetensors_name(DType dtype) { return facts(dtype).name; }

DType dtype_from_safetensors(const std::string& name) {
  for (const auto& row : kDTypes) {
    if (name == row.name) return row.dtype;
  }
  throw Failure("tensors", "the harness has no tensors of dtype '" + name + "'");
}

std::size_t element_count(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (auto size : shape) {
    if (size < 0) throw Failure("tensors", "negative dimension");
    if (size != 0 && count > std::numeric_limits<std::size_t>::max() / 16 / static_cast<std::size_t>(size)) {
      throw Failure("tensors", "a shape is too large");
    }
    count *= static_cast<std::size_t>(size);
  }
  return count;
}

TensorFile::TensorFile(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_errno("tensors", "cannot open '" + path + "'");
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || info.st_size < 8) {
    ::close(descriptor);
    throw Failure("tensors", "'" + path + "' is not a safetensors file");
  }
  length_ = static_cast<std::size_t>(info.st_size);
  map_ = ::mmap(nullptr, length_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  ::close(descriptor);
  if (map_ == MAP_FAILED) fail_errno("tensors", "cannot map '" + path + "'");
  const auto* base = static_cast<const std::byte*>(map_);
  std::uint64_t header_length = 0;
  std::memcpy(&header_length, base, 8);
  if (header_length > length_ - 8) throw Failure("tensors", "'" + path + "' is cut short");
  const std::size_t start = 8 + header_length;
  const auto* text = reinterpret_cast<const char*>(base + 8);
  try {
    const auto header = nlohmann::json::parse(text, text + header_length);
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      TensorView view;
      view.name = name;
      view.dtype = dtype_from_safetensors(entry.at("dtype").get<std::string>());
      view.shape = entry.at("shape").get<std::vector<std::int64_t>>();
      const auto begin = entry.at("data_offsets").at(0).get<std::size_t>();
      const auto end = entry.at("data_offsets").at(1).get<std::size_t>();
      if (begin > end || end > length_ - start || end - begin != element_count(view.shape) * item_size(view.dtype)) {
        throw Failure("tensors", "tensor '" + name + "' does not fit its place in '" + path + "'");
      }
      view.data = base + start + begin;
      view.bytes = end - begin;
      tensors_.emplace(name, std::move(view));
    }
  } catch (const nlohmann::json::exception& error) {
    throw Failure("tensors", "the header of '" + path + "' cannot be read: " + error.what());
  }
}

TensorFile::~TensorFile() {
  if (map_ != nullptr && map_ != MAP_FAILED) ::munmap(map_, length_);
}

const TensorView& TensorFile::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw Failure("tensors", "the job's tensors hold no '" + name + "'");
  return found->second;
}

TensorWriter::TensorWriter(std::string path, std::size_t reserve)
    : path_(std::move(path)), temporary_(path_ + ".part"), reserve_((reserve + 7) & ~std::size_t{7}) {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail_errno("write", "cannot write '" + temporary_ + "'");
  if (::lseek(descriptor_, static_cast<off_t>(8 + reserve_), SEEK_SET) < 0) fail_errno("write", "cannot seek");
}

TensorWriter::~TensorWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void TensorWriter::write(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto done = ::write(descriptor_, at, bytes);
    if (done < 0) {
      if (errno == EINTR) continue;
      fail_errno("write", "cannot write '" + temporary_ + "'");
    }
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

void TensorWriter::add(const Tensor& tensor) {
  nlohmann::json entry{{"dtype", safetensors_name(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"data_offsets", {offset_, offset_ + tensor.data.size()}}};
  if (header_.size() > 1) header_ += ",";
  header_ += nlohmann::json(tensor.name).dump() + ":" + entry.dump();
  write(tensor.data.data(), tensor.data.size());
  offset_ += tensor.data.size();
}

std::size_t TensorWriter::finish() {
  header_ += "}";
  if (header_.size() > reserve_) throw Failure("write", "the header of the outputs is larger than was reserved");
  header_.resize(reserve_, ' ');
  const std::uint64_t length = reserve_;
  if (::lseek(descriptor_, 0, SEEK_SET) < 0) fail_errno("write", "cannot seek");
  write(&length, sizeof length);
  write(header_.data(), header_.size());
  if (::fsync(descriptor_) != 0) fail_errno("write", "cannot flush '" + temporary_ + "'");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_errno("write", "cannot close '" + temporary_ + "'");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_errno("write", "cannot rename to '" + path_ + "'");
  return 8 + reserve_ + offset_;
}

}  // namespace harness
