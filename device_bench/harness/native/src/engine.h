// What an inference engine offers to the harness. One implementation per runtime, one file each.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "job.h"
#include "tensors.h"

namespace harness {

class Engine {
 public:
  virtual ~Engine() = default;

  virtual std::string runtime() const = 0;
  virtual std::string version() const = 0;

  // Load the artifact and make it ready to run through `entry`. This is what "load time" measures.
  virtual void load(const Job& job, const std::string& entry) = 0;

  // Bind the inputs of the next runs. May allocate and resize; not timed.
  virtual void prepare(const std::string& entry, const std::vector<const TensorView*>& inputs) = 0;

  // One inference, the copying of inputs into the runtime's own buffers included where the runtime needs that.
  // Allocates nothing of the harness's own. False when the runtime failed: `error` says why.
  virtual bool run() = 0;
  virtual std::string error() const = 0;

  // Copies of the outputs of the last run, named as the job names them.
  virtual std::vector<Tensor> outputs() = 0;

  // The number of threads the runtime says it computes with; 0 when it does not say.
  virtual int threads() const = 0;
};

std::unique_ptr<Engine> make_engine();

}  // namespace harness
