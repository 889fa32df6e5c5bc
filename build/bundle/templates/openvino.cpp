@@INCLUDES@@
#include <openvino/openvino.hpp>
@@MEMBERS@@
  ov::CompiledModel model_;
@@DEFINITIONS@@
namespace {

template <typename T>
ov::Tensor view(const Tensor<T>& tensor, ov::element::Type type) {
  // The runtime takes a mutable pointer and only reads through it.
  return {type, ov::Shape(tensor.shape.begin(), tensor.shape.end()), const_cast<T*>(tensor.data.data())};
}

template <typename T>
Tensor<T> copy(const ov::Tensor& tensor) {
  const auto* data = static_cast<const T*>(tensor.data());
  const auto shape = tensor.get_shape();
  return {{shape.begin(), shape.end()}, {data, data + tensor.get_size()}};
}

}  // namespace

// float32 arithmetic also where the processor prefers bfloat16: that is what was verified.
@CLASS@::@CLASS@(const std::string& bundle)
    : model_(ov::Core().compile_model(bundle + "/@MODEL@", "CPU",
                                      ov::hint::inference_precision(ov::element::f32))) {}

@CLASS@::Outputs @CLASS@::run(@INPUT_PARAMETERS_CPP@) {
  Sizes sizes;
@CHECKS_CPP@
  // A request of its own: a failed call can then not return an earlier call's result.
  auto request = model_.create_infer_request();
@SETS_OV@
  request.infer();
  return {@OUTPUT_COPIES_OV@};
}
