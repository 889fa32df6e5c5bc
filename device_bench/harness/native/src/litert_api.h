// The part of LiteRT's C API that the harness uses. The wheel ships libLiteRt.so without headers, so these are declared
// by hand for ai-edge-litert 2.3.0; signatures have changed between releases, and the build checks the version.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

struct LiteRtLayout {
  unsigned rank : 7;
  unsigned has_strides : 1;
  std::int32_t dims[8];
  std::uint32_t strides[8];
};
struct LiteRtRankedTensorType {
  std::int32_t element_type;
  LiteRtLayout layout;
};
static_assert(sizeof(LiteRtLayout) == 68 && sizeof(LiteRtRankedTensorType) == 72);

struct LiteRtAny {
  std::int32_t type;
  union {
    bool boolean;
    std::int64_t integer;
    double real;
    const char* text;
    const void* pointer;
  };
};
struct LiteRtEnvOption {
  std::int32_t tag;
  LiteRtAny value;
};
static_assert(sizeof(LiteRtEnvOption) == 24);

typedef struct LiteRtEnvironmentT* LiteRtEnvironment;
typedef struct LiteRtModelT* LiteRtModel;
typedef struct LiteRtOptionsT* LiteRtOptions;
typedef struct LiteRtOpaqueOptionsT* LiteRtOpaqueOptions;
typedef struct LiteRtCompiledModelT* LiteRtCompiledModel;
typedef struct LiteRtTensorBufferT* LiteRtTensorBuffer;
typedef struct LiteRtSignatureT* LiteRtSignature;
typedef struct LiteRtTensorT* LiteRtTensor;
typedef int LiteRtStatus;  // 0 is success

LiteRtStatus LiteRtCreateEnvironment(int count, const LiteRtEnvOption* options, LiteRtEnvironment* environment);
void LiteRtDestroyEnvironment(LiteRtEnvironment environment);
LiteRtStatus LiteRtCreateModelFromFile(LiteRtEnvironment environment, const char* path, LiteRtModel* model);
void LiteRtDestroyModel(LiteRtModel model);
LiteRtStatus LiteRtGetNumModelSignatures(LiteRtModel model, std::size_t* count);
LiteRtStatus LiteRtGetModelSignature(LiteRtModel model, std::size_t index, LiteRtSignature* signature);
LiteRtStatus LiteRtGetSignatureKey(LiteRtSignature signature, const char** key);
LiteRtStatus LiteRtGetNumSignatureInputs(LiteRtSignature signature, std::size_t* count);
LiteRtStatus LiteRtGetNumSignatureOutputs(LiteRtSignature signature, std::size_t* count);
LiteRtStatus LiteRtGetSignatureInputName(LiteRtSignature signature, std::size_t index, const char** name);
LiteRtStatus LiteRtGetSignatureOutputName(LiteRtSignature signature, std::size_t index, const char** name);
LiteRtStatus LiteRtGetSignatureInputTensorByIndex(LiteRtSignature signature, std::size_t index, LiteRtTensor* tensor);
LiteRtStatus LiteRtGetSignatureOutputTensorByIndex(LiteRtSignature signature, std::size_t index, LiteRtTensor* tensor);
LiteRtStatus LiteRtGetRankedTensorType(LiteRtTensor tensor, LiteRtRankedTensorType* type);
LiteRtStatus LiteRtCreateOptions(LiteRtOptions* options);
void LiteRtDestroyOptions(LiteRtOptions options);
LiteRtStatus LiteRtSetOptionsHardwareAccelerators(LiteRtOptions options, int accelerators);
LiteRtStatus LiteRtCreateOpaqueOptions(const char* identifier, void* payload, void (*destroy)(void*),
                                       LiteRtOpaqueOptions* options);
LiteRtStatus LiteRtAddOpaqueOptions(LiteRtOptions options, LiteRtOpaqueOptions opaque);
LiteRtStatus LiteRtCreateCompiledModel(LiteRtEnvironment environment, LiteRtModel model, LiteRtOptions options,
                                       LiteRtCompiledModel* compiled);
void LiteRtDestroyCompiledModel(LiteRtCompiledModel compiled);
LiteRtStatus LiteRtCompiledModelResizeInputTensorNonStrict(LiteRtCompiledModel compiled, std::size_t signature,
                                                           std::size_t input, const int* dims, std::size_t rank);
LiteRtStatus LiteRtGetCompiledModelInputTensorLayout(LiteRtCompiledModel compiled, std::size_t signature,
                                                     std::size_t input, LiteRtLayout* layout);
LiteRtStatus LiteRtGetCompiledModelOutputTensorLayouts(LiteRtCompiledModel compiled, std::size_t signature,
                                                       std::size_t count, LiteRtLayout* layouts, bool update);
LiteRtStatus LiteRtCreateTensorBufferFromHostMemory(const LiteRtRankedTensorType* type, void* memory, std::size_t bytes,
                                                    void (*release)(void*), LiteRtTensorBuffer* buffer);
void LiteRtDestroyTensorBuffer(LiteRtTensorBuffer buffer);
LiteRtStatus LiteRtRunCompiledModel(LiteRtCompiledModel compiled, std::size_t signature, std::size_t inputs,
                                    LiteRtTensorBuffer* input_buffers, std::size_t outputs,
                                    LiteRtTensorBuffer* output_buffers);

}  // extern "C"

namespace harness {
constexpr int kLiteRtHwAcceleratorCpu = 1;
constexpr int kLiteRtEnvOptionTagMinLoggerSeverity = 25;
constexpr int kLiteRtAnyTypeInt = 2;
constexpr int kLiteRtLogWarning = 3;
}  // namespace harness
