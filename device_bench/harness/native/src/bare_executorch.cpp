// bare-executorch MODEL.pte RUNS THREADS DIM...: the plainest loop around a float32 model, for comparison with the
// harness's own figures. Prints the median in ns.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(std::uint32_t count);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

int main(int count, char** arguments) {
  if (count < 5) return 2;
  const int runs = std::atoi(arguments[2]), warmup = runs / 10 + 5;
  executorch::extension::threadpool::get_threadpool()->_unsafe_reset_threadpool(
      static_cast<std::uint32_t>(std::atoi(arguments[3])));
  std::vector<executorch::aten::SizesType> sizes;
  std::size_t elements = 1;
  for (int i = 4; i < count; i++) {
    sizes.push_back(std::atoi(arguments[i]));
    elements *= static_cast<std::size_t>(sizes.back());
  }
  executorch::extension::Module module(arguments[1]);
  std::vector<float> data(elements, 0.5F);
  const auto input = executorch::extension::from_blob(data.data(), sizes);
  std::vector<long> samples;
  samples.reserve(static_cast<std::size_t>(runs));
  for (int i = 0; i < runs + warmup; i++) {
    const auto start = std::chrono::steady_clock::now();
    const auto result = module.forward(input);
    const auto end = std::chrono::steady_clock::now();
    if (!result.ok()) return 3;
    if (i >= warmup) samples.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count());
  }
  std::sort(samples.begin(), samples.end());
  std::printf("%ld\n", samples[samples.size() / 2]);
  return 0;
}
