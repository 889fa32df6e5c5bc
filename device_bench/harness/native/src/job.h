// What the harness is asked to do. Schema: device_bench/job.schema.json.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace harness {

constexpr int kJobSchemaVersion = 1;

// One call of the model: the way in (ExecuTorch method, LiteRT signature) and its tensors in the job's tensor file,
// one for each input of the job, in that order.
struct Call {
  std::string id;
  std::string entry;
  std::vector<std::string> tensors;
};

// An input as the program declares it; every tensor of every call is checked against it. The runtimes check less:
// ExecuTorch only the total size, LiteRT not even the rank.
struct Input {
  std::string name;
  std::string dtype;  // as safetensors spells it
  std::vector<std::pair<std::int64_t, std::int64_t>> shape;  // least and largest size of each dimension
};

struct Job {
  std::string id;
  std::string artifact;
  std::string artifact_sha256;
  std::string tensors;
  std::vector<Input> inputs;         // in the program's order
  std::vector<std::string> outputs;  // names, in the program's order
  Call timed;
  std::vector<Call> calls;  // the evaluation set
  int threads = 1;
  std::vector<int> affinity;  // CPUs; empty: wherever the kernel likes
  std::int64_t warmup_runs = 5;
  double warmup_seconds = 0.5;
  std::int64_t min_runs = 50;
  double min_seconds = 1.0;
  std::int64_t max_runs = 1'000'000;
  double max_seconds = 60.0;
  std::string result_file;
  std::string outputs_file;
};

Job read_job(const std::string& path);

}  // namespace harness
