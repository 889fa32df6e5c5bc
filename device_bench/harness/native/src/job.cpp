#include "job.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "failure.h"

namespace harness {
namespace {

Call read_call(const nlohmann::json& value, std::size_t inputs) {
  Call call{value.at("id").get<std::string>(), value.at("entry").get<std::string>(),
            value.at("tensors").get<std::vector<std::string>>()};
  if (call.tensors.size() != inputs) throw Failure("job", "call '" + call.id + "' has another number of tensors");
  return call;
}

Input read_input(const nlohmann::json& value) {
  Input input{value.at("name").get<std::string>(), value.at("dtype").get<std::string>(), {}};
  for (const auto& range : value.at("shape")) {
    input.shape.emplace_back(range.at(0).get<std::int64_t>(), range.at(1).get<std::int64_t>());
  }
  return input;
}

}  // namespace

Job read_job(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw Failure("job", "cannot open '" + path + "'");
  try {
    const auto value = nlohmann::json::parse(stream);
    if (value.at("schema_version").get<int>() != kJobSchemaVersion) {
      throw Failure("job", "the job has another schema version");
    }
    Job job;
    job.id = value.at("id").get<std::string>();
    job.artifact = value.at("artifact").get<std::string>();
    job.artifact_sha256 = value.at("artifact_sha256").get<std::string>();
    job.tensors = value.at("tensors").get<std::string>();
    for (const auto& input : value.at("inputs")) job.inputs.push_back(read_input(input));
    job.outputs = value.at("outputs").get<std::vector<std::string>>();
    job.timed = read_call(value.at("timed"), job.inputs.size());
    for (const auto& call : value.at("calls")) job.calls.push_back(read_call(call, job.inputs.size()));
    const auto& settings = value.at("settings");
    job.threads = settings.at("threads").get<int>();
    job.affinity = settings.at("affinity").get<std::vector<int>>();
    job.warmup_runs = settings.at("warmup_runs").get<std::int64_t>();
    job.warmup_seconds = settings.at("warmup_seconds").get<double>();
    job.min_runs = settings.at("min_runs").get<std::int64_t>();
    job.min_seconds = settings.at("min_seconds").get<double>();
    job.max_runs = settings.at("max_runs").get<std::int64_t>();
    job.max_seconds = settings.at("max_seconds").get<double>();
    job.result_file = value.at("result_file").get<std::string>();
    job.outputs_file = value.at("outputs_file").get<std::string>();
    if (job.threads < 1) throw Failure("job", "a job needs at least one thread");
    return job;
  } catch (const nlohmann::json::exception& error) {
    throw Failure("job", std::string("the job cannot be read: ") + error.what());
  }
}

}  // namespace harness
