// ExecuTorch, on the C++ runtime inside the `executorch` wheel.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <cstring>

#include "engine.h"
#include "failure.h"

// The wheel ships this class in libexecutorch_threadpool.so, without its header. Only these three members are used.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  std::size_t get_thread_count() const;
  bool _unsafe_reset_threadpool(std::uint32_t count);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

namespace harness {
namespace {

using executorch::aten::ScalarType;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;

struct DTypePair {
  DType ours;
  ScalarType theirs;
};
constexpr DTypePair kDTypes[] = {{DType::kBool, ScalarType::Bool},   {DType::kUInt8, ScalarType::Byte},
                                 {DType::kInt8, ScalarType::Char},   {DType::kInt16, ScalarType::Short},
                                 {DType::kInt32, ScalarType::Int},   {DType::kInt64, ScalarType::Long},
                                 {DType::kFloat16, ScalarType::Half}, {DType::kFloat32, ScalarType::Float},
                                 {DType::kFloat64, ScalarType::Double}};

ScalarType to_theirs(DType dtype) {
  for (const auto& pair : kDTypes) {
    if (pair.ours == dtype) return pair.theirs;
  }
  throw Failure("prepare", "no such dtype in ExecuTorch");
}

DType to_ours(ScalarType dtype) {
  for (const auto& pair : kDTypes) {
    if (pair.theirs == dtype) return pair.ours;
  }
  throw Failure("outputs", "an output has a dtype that the harness cannot write");
}

std::string describe(const std::string& what, Error error) {
  return what + ": ExecuTorch error " + std::to_string(static_cast<int>(error)) + " (" +
         executorch::runtime::to_string(error) + ")";
}

class ExecutorchEngine final : public Engine {
 public:
  std::string runtime() const override { return "executorch"; }
  std::string version() const override { return EXECUTORCH_VERSION; }

  void load(const Job& job, const std::string& entry) override {
    outputs_ = job.outputs;
    auto* pool = executorch::extension::threadpool::get_threadpool();
    if (pool == nullptr || !pool->_unsafe_reset_threadpool(static_cast<std::uint32_t>(job.threads))) {
      throw Failure("load", "ExecuTorch's thread pool cannot be set to " + std::to_string(job.threads) + " threads");
    }
    module_ = std::make_unique<Module>(job.artifact, Module::LoadMode::File);
    if (const auto error = module_->load(); error != Error::Ok) {
      throw Failure("load", describe("cannot load '" + job.artifact + "'", error));
    }
    use(entry);
  }

  void prepare(const std::string& entry, const std::vector<const TensorView*>& inputs) override {
    use(entry);
    tensors_.clear();
    values_.clear();
    for (const auto* view : inputs) {
      std::vector<executorch::aten::SizesType> sizes;
      for (auto size : view->shape) sizes.push_back(static_cast<executorch::aten::SizesType>(size));
      // The runtime takes a mutable pointer and does not write through it: it copies planned inputs, reads others.
      auto* data = const_cast<std::byte*>(view->data);
      tensors_.push_back(executorch::extension::from_blob(data, std::move(sizes), to_theirs(view->dtype)));
      values_.emplace_back(*tensors_.back());
    }
  }

  bool run() override {
    // Inputs are set for every run: a planned input's memory may be reused by later operators of the same run.
    error_ = method_->set_inputs({values_.data(), values_.size()});
    if (error_ == Error::Ok) error_ = method_->execute();
    return error_ == Error::Ok;
  }

  std::string error() const override { return describe("inference failed", error_); }

  std::vector<Tensor> outputs() override {
    std::vector<Tensor> found;
    for (std::size_t i = 0; i < method_->outputs_size(); i++) {
      const auto& value = method_->get_output(i);
      if (!value.isTensor()) continue;  // constants among the outputs belong to the caller
      if (found.size() == outputs_.size()) throw Failure("outputs", "the artifact has more outputs than the program");
      const auto tensor = value.toTensor();
      Tensor copy;
      copy.name = outputs_[found.size()];
      copy.dtype = to_ours(tensor.scalar_type());
      for (auto size : tensor.sizes()) copy.shape.push_back(size);
      copy.data.resize(tensor.nbytes());
      if (!copy.data.empty()) std::memcpy(copy.data.data(), tensor.const_data_ptr(), copy.data.size());
      found.push_back(std::move(copy));
    }
    if (found.size() != outputs_.size()) throw Failure("outputs", "the artifact has fewer outputs than the program");
    return found;
  }

  int threads() const override {
    return static_cast<int>(executorch::extension::threadpool::get_threadpool()->get_thread_count());
  }

 private:
  void use(const std::string& entry) {
    if (method_ != nullptr && entry == entry_) return;
    if (const auto error = module_->load_method(entry); error != Error::Ok) {
      throw Failure("load", describe("cannot load method '" + entry + "'", error));
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    // Module::execute would allocate its list of outputs in the timed loop; the method itself allocates nothing.
    auto method = module_->method(entry);
#pragma GCC diagnostic pop
    if (!method.ok()) throw Failure("load", describe("no method '" + entry + "'", method.error()));
    method_ = method.get();
    entry_ = entry;
  }

  std::unique_ptr<Module> module_;
  executorch::runtime::Method* method_ = nullptr;
  std::string entry_;
  std::vector<std::string> outputs_;
  std::vector<TensorPtr> tensors_;
  std::vector<EValue> values_;
  Error error_ = Error::Ok;
};

}  // namespace

std::unique_ptr<Engine> make_engine() { return std::make_unique<ExecutorchEngine>(); }

}  // namespace harness
