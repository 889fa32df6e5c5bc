@@INCLUDES@@
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
@@MEMBERS@@
  executorch::extension::Module module_;
@@DEFINITIONS@@
namespace {

template <typename T>
executorch::extension::TensorPtr view(const Tensor<T>& tensor, executorch::aten::ScalarType type) {
  const std::vector<executorch::aten::SizesType> sizes(tensor.shape.begin(), tensor.shape.end());
  // The runtime takes a mutable pointer and only reads through it.
  return executorch::extension::from_blob(const_cast<T*>(tensor.data.data()), sizes, type);
}

template <typename T>
Tensor<T> copy(const executorch::runtime::EValue& value) {
  const auto tensor = value.toTensor();
  const auto* data = static_cast<const T*>(tensor.const_data_ptr());
  return {{tensor.sizes().begin(), tensor.sizes().end()}, {data, data + tensor.numel()}};
}

}  // namespace

@CLASS@::@CLASS@(const std::string& bundle) : module_(bundle + "/@MODEL@") {
  if (module_.load_method("@ENTRY@") != executorch::runtime::Error::Ok) {
    throw std::runtime_error("ExecuTorch cannot load @MODEL@");
  }
}

@CLASS@::Outputs @CLASS@::run(@INPUT_PARAMETERS_CPP@) {
  Sizes sizes;
@CHECKS_CPP@
@VIEWS_ET@
  // A .pte has no names: inputs and outputs go by position.
  const auto result = module_.execute("@ENTRY@", {@VIEW_VALUES_ET@});
  if (!result.ok()) throw std::runtime_error("ExecuTorch failed: " + std::to_string(static_cast<int>(result.error())));
  return {@OUTPUT_COPIES_ET@};
}
