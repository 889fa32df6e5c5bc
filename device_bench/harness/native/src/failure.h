#pragma once
#include <stdexcept>
#include <string>

namespace harness {

// What went wrong, and at which stage of the job: "job", "tensors", "load", "prepare", "run", "outputs" or "write".
class Failure : public std::runtime_error {
 public:
  Failure(std::string stage, const std::string& message) : std::runtime_error(message), stage_(std::move(stage)) {}
  const std::string& stage() const { return stage_; }

 private:
  std::string stage_;
};

}  // namespace harness
