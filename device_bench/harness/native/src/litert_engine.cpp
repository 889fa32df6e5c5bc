// LiteRT's CompiledModel on the CPU, through the C API of libLiteRt.so in the `ai-edge-litert` wheel.
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "engine.h"
#include "failure.h"
#include "litert_api.h"

namespace harness {
namespace {

constexpr std::size_t kAlignment = 64;  // what CreateTensorBufferFromHostMemory asks of host memory

struct DTypePair {
  DType ours;
  int theirs;  // LiteRtElementType, the numbers of TfLiteType
};
constexpr DTypePair kDTypes[] = {{DType::kFloat32, 1}, {DType::kInt32, 2}, {DType::kUInt8, 3},
                                 {DType::kInt64, 4},   {DType::kBool, 6},  {DType::kInt16, 7},
                                 {DType::kInt8, 9},    {DType::kFloat16, 10}, {DType::kFloat64, 11}};

DType to_ours(int element_type) {
  for (const auto& pair : kDTypes) {
    if (pair.theirs == element_type) return pair.ours;
  }
  throw Failure("load", "LiteRT element type " + std::to_string(element_type) + " is not one that the harness knows");
}

void check(LiteRtStatus status, const char* stage, const std::string& what) {
  if (status != 0) throw Failure(stage, what + ": LiteRT status " + std::to_string(status));
}

std::vector<std::int64_t> shape_of(const LiteRtLayout& layout) {
  return {layout.dims, layout.dims + layout.rank};
}

// A tensor buffer over memory of ours.
class Buffer {
 public:
  Buffer(const LiteRtRankedTensorType& type, std::size_t bytes) : bytes_(bytes) {
    const auto rounded = (bytes + 2 * kAlignment - 1) / kAlignment * kAlignment;
    if (::posix_memalign(&memory_, kAlignment, rounded) != 0) throw Failure("prepare", "out of memory");
    std::memset(memory_, 0, rounded);
    if (const auto status = LiteRtCreateTensorBufferFromHostMemory(&type, memory_, bytes, nullptr, &handle_)) {
      std::free(memory_);
      throw Failure("prepare", "cannot create a tensor buffer: LiteRT status " + std::to_string(status));
    }
  }
  ~Buffer() {
    if (handle_ != nullptr) LiteRtDestroyTensorBuffer(handle_);
    std::free(memory_);
  }
  Buffer(Buffer&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), memory_(std::exchange(other.memory_, nullptr)),
        bytes_(other.bytes_) {}
  Buffer& operator=(Buffer&&) = delete;

  LiteRtTensorBuffer handle() const { return handle_; }
  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  std::size_t bytes() const { return bytes_; }

 private:
  LiteRtTensorBuffer handle_ = nullptr;
  void* memory_ = nullptr;
  std::size_t bytes_;
};

// One signature of the model, with the places of the job's inputs and outputs in it.
struct Entry {
  std::size_t index = 0;
  std::vector<std::size_t> inputs;   // job's order -> index in the signature
  std::vector<std::size_t> outputs;  // job's order -> index in the signature
  std::vector<LiteRtRankedTensorType> input_types, output_types;  // by index in the signature
};

std::vector<std::size_t> places(const std::vector<std::string>& wanted, const std::vector<std::string>& names,
                                const char* what) {
  std::vector<std::size_t> found;
  for (const auto& name : wanted) {
    std::size_t at = 0;
    while (at < names.size() && names[at] != name) at++;
    if (at == names.size()) throw Failure("load", std::string("the artifact has no ") + what + " '" + name + "'");
    found.push_back(at);
  }
  if (names.size() != wanted.size()) throw Failure("load", std::string("the artifact has more ") + what + "s");
  return found;
}

// Copy an input into the artifact's own dtype. 64-bit integers are narrowed, and refused when they do not fit.
void fill(const TensorView& from, DType to, std::byte* memory, std::size_t bytes) {
  if (from.dtype == to) {
    if (from.bytes != bytes) throw Failure("prepare", "input '" + from.name + "' has another size than the artifact");
    if (bytes != 0) std::memcpy(memory, from.data, bytes);
    return;
  }
  if (from.dtype != DType::kInt64 || to != DType::kInt32) {
    throw Failure("prepare", "input '" + from.name + "' has another dtype than the artifact");
  }
  const auto count = element_count(from.shape);
  if (count * sizeof(std::int32_t) != bytes) throw Failure("prepare", "input '" + from.name + "' has another size");
  for (std::size_t i = 0; i < count; i++) {
    std::int64_t wide = 0;
    std::memcpy(&wide, from.data + i * sizeof wide, sizeof wide);
    if (wide < std::numeric_limits<std::int32_t>::min() || wide > std::numeric_limits<std::int32_t>::max()) {
      throw Failure("prepare", "input '" + from.name + "' holds a value beyond 32 bits");
    }
    const auto narrow = static_cast<std::int32_t>(wide);
    std::memcpy(memory + i * sizeof narrow, &narrow, sizeof narrow);
  }
}

class LiteRtEngine final : public Engine {
 public:
  ~LiteRtEngine() override {
    inputs_.clear();
    outputs_.clear();
    if (compiled_ != nullptr) LiteRtDestroyCompiledModel(compiled_);
    if (options_ != nullptr) LiteRtDestroyOptions(options_);
    if (model_ != nullptr) LiteRtDestroyModel(model_);
    if (environment_ != nullptr) LiteRtDestroyEnvironment(environment_);
  }

  std::string runtime() const override { return "litert"; }
  std::string version() const override { return LITERT_VERSION; }

  void load(const Job& job, const std::string& entry) override {
    names_ = job.outputs;
    LiteRtEnvOption quiet{kLiteRtEnvOptionTagMinLoggerSeverity, {}};
    quiet.value.type = kLiteRtAnyTypeInt;
    quiet.value.integer = kLiteRtLogWarning;
    check(LiteRtCreateEnvironment(1, &quiet, &environment_), "load", "cannot create an environment");
    check(LiteRtCreateModelFromFile(environment_, job.artifact.c_str(), &model_), "load",
          "cannot load '" + job.artifact + "'");
    check(LiteRtCreateOptions(&options_), "load", "cannot create options");
    check(LiteRtSetOptionsHardwareAccelerators(options_, kLiteRtHwAcceleratorCpu), "load", "cannot choose the CPU");
    const auto text = "num_threads = " + std::to_string(job.threads) + "\n";
    LiteRtOpaqueOptions cpu = nullptr;
    check(LiteRtCreateOpaqueOptions("xnnpack", ::strdup(text.c_str()), std::free, &cpu), "load", "cannot set threads");
    check(LiteRtAddOpaqueOptions(options_, cpu), "load", "cannot set threads");
    check(LiteRtCreateCompiledModel(environment_, model_, options_, &compiled_), "load", "cannot compile the model");
    read_entries(job);
    use(entry);
  }

  void prepare(const std::string& name, const std::vector<const TensorView*>& inputs) override {
    const auto& entry = use(name);
    resize(entry, inputs);
    inputs_.clear();
    outputs_.clear();
    input_handles_.assign(entry.inputs.size(), nullptr);
    output_handles_.assign(entry.outputs.size(), nullptr);
    shapes_.assign(entry.outputs.size(), {});
    for (std::size_t i = 0; i < inputs.size(); i++) {
      const auto at = entry.inputs[i];
      auto type = entry.input_types[at];
      check(LiteRtGetCompiledModelInputTensorLayout(compiled_, entry.index, at, &type.layout), "prepare", "no layout");
      if (shape_of(type.layout) != inputs[i]->shape) {
        throw Failure("prepare", "input '" + inputs[i]->name + "' has another shape than the artifact takes");
      }
      const auto dtype = to_ours(type.element_type);
      inputs_.emplace_back(type, element_count(inputs[i]->shape) * item_size(dtype));
      fill(*inputs[i], dtype, inputs_.back().data(), inputs_.back().bytes());
      input_handles_[at] = inputs_.back().handle();
    }
    std::vector<LiteRtLayout> layouts(entry.outputs.size());
    check(LiteRtGetCompiledModelOutputTensorLayouts(compiled_, entry.index, layouts.size(), layouts.data(), true),
          "prepare", "no output layouts");
    for (std::size_t i = 0; i < entry.outputs.size(); i++) {
      const auto at = entry.outputs[i];
      auto type = entry.output_types[at];
      type.layout = layouts[at];
      shapes_[i] = shape_of(type.layout);
      outputs_.emplace_back(type, element_count(shapes_[i]) * item_size(to_ours(type.element_type)));
      output_handles_[at] = outputs_.back().handle();
    }
  }

  bool run() override {
    status_ = LiteRtRunCompiledModel(compiled_, current_->index, input_handles_.size(), input_handles_.data(),
                                     output_handles_.size(), output_handles_.data());
    return status_ == 0;
  }

  std::string error() const override { return "inference failed: LiteRT status " + std::to_string(status_); }

  std::vector<Tensor> outputs() override {
    std::vector<Tensor> found;
    for (std::size_t i = 0; i < names_.size(); i++) {
      const auto dtype = to_ours(current_->output_types[current_->outputs[i]].element_type);
      const auto* data = outputs_[i].data();
      found.push_back({names_[i], dtype, shapes_[i], {data, data + outputs_[i].bytes()}});
    }
    return found;
  }

  int threads() const override { return 0; }

 private:
  void read_entries(const Job& job) {
    std::size_t count = 0;
    check(LiteRtGetNumModelSignatures(model_, &count), "load", "cannot count signatures");
    for (std::size_t i = 0; i < count; i++) {
      LiteRtSignature signature = nullptr;
      const char* key = nullptr;
      check(LiteRtGetModelSignature(model_, i, &signature), "load", "cannot read a signature");
      check(LiteRtGetSignatureKey(signature, &key), "load", "cannot read a signature's key");
      Entry entry;
      entry.index = i;
      std::vector<std::string> inputs;
      for (const auto& input : job.inputs) inputs.push_back(input.name);
      entry.inputs = places(inputs, read_side(signature, true, entry.input_types), "input");
      entry.outputs = places(job.outputs, read_side(signature, false, entry.output_types), "output");
      entries_.emplace(key, std::move(entry));
    }
  }

  static std::vector<std::string> read_side(LiteRtSignature signature, bool inputs,
                                            std::vector<LiteRtRankedTensorType>& types) {
    std::size_t count = 0;
    check(inputs ? LiteRtGetNumSignatureInputs(signature, &count) : LiteRtGetNumSignatureOutputs(signature, &count),
          "load", "cannot count a signature's tensors");
    std::vector<std::string> names;
    types.resize(count);
    for (std::size_t i = 0; i < count; i++) {
      const char* name = nullptr;
      LiteRtTensor tensor = nullptr;
      check(inputs ? LiteRtGetSignatureInputName(signature, i, &name)
                   : LiteRtGetSignatureOutputName(signature, i, &name),
            "load", "cannot read a tensor's name");
      check(inputs ? LiteRtGetSignatureInputTensorByIndex(signature, i, &tensor)
                   : LiteRtGetSignatureOutputTensorByIndex(signature, i, &tensor),
            "load", "cannot read a tensor");
      check(LiteRtGetRankedTensorType(tensor, &types[i]), "load", "cannot read a tensor's type");
      names.emplace_back(name);
    }
    return names;
  }

  const Entry& use(const std::string& name) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) throw Failure("load", "the artifact has no signature '" + name + "'");
    current_ = &found->second;
    return *current_;
  }

  void resize(const Entry& entry, const std::vector<const TensorView*>& inputs) {
    for (std::size_t i = 0; i < inputs.size(); i++) {
      LiteRtLayout layout{};
      const auto at = entry.inputs[i];
      check(LiteRtGetCompiledModelInputTensorLayout(compiled_, entry.index, at, &layout), "prepare", "no layout");
      if (shape_of(layout) == inputs[i]->shape) continue;
      const std::vector<int> dims(inputs[i]->shape.begin(), inputs[i]->shape.end());
      check(LiteRtCompiledModelResizeInputTensorNonStrict(compiled_, entry.index, at, dims.data(), dims.size()),
            "prepare", "input '" + inputs[i]->name + "' cannot take this shape");
    }
  }

  LiteRtEnvironment environment_ = nullptr;
  LiteRtModel model_ = nullptr;
  LiteRtOptions options_ = nullptr;
  LiteRtCompiledModel compiled_ = nullptr;
  std::map<std::string, Entry> entries_;
  const Entry* current_ = nullptr;
  std::vector<std::string> names_;
  std::vector<Buffer> inputs_, outputs_;  // the job's order
  std::vector<LiteRtTensorBuffer> input_handles_, output_handles_;
  std::vector<std::vector<std::int64_t>> shapes_;
  LiteRtStatus status_ = 0;
};

}  // namespace

std::unique_ptr<Engine> make_engine() { return std::make_unique<LiteRtEngine>(); }

}  // namespace harness
