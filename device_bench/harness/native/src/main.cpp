// harness JOB.json: run one job, write its outputs and its result, and say so in the last line on stdout.
//
// Exit codes: 0 measured; 2 the job cannot be used; 3 the engine failed (a complete result says how);
// 4 the result could not be written.
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "engine.h"
#include "failure.h"
#include "job.h"
#include "measure.h"
#include "result.h"
#include "system.h"

namespace {

using harness::Engine;
using harness::Failure;
using harness::Job;

// What an output's entry in the header takes at most, beside its names: dtype, rank-8 shape, two offsets.
constexpr std::size_t kHeaderBytes = 320;

nlohmann::json evaluate(const Job& job, Engine& engine, const harness::TensorFile& tensors) {
  std::size_t reserve = 64;
  for (const auto& call : job.calls) {
    for (const auto& name : job.outputs) reserve += kHeaderBytes + 6 * (call.id.size() + name.size());
  }
  harness::TensorWriter writer(job.outputs_file, reserve);
  for (const auto& call : job.calls) {
    engine.prepare(call.entry, harness::tensors_of(job, call, tensors));
    if (!engine.run()) throw Failure("run", "call '" + call.id + "': " + engine.error());
    for (auto& output : engine.outputs()) {
      output.name = call.id + "/out/" + output.name;
      writer.add(output);
    }
  }
  const auto bytes = writer.finish();
  return {{"file", job.outputs_file}, {"bytes", bytes}, {"calls", job.calls.size()}};
}

void carry_out(const Job& job, Engine& engine, nlohmann::json& result) {
  harness::set_affinity(job.affinity);
  const harness::TensorFile tensors(job.tensors);
  harness::add_measurement(result, harness::measure(job, engine, tensors));
  if (engine.threads() > 0) {
    result["threads"]["runtime"] = engine.threads();
  } else {
    result["threads"]["runtime"] = nullptr;
  }
  result["after"] = harness::conditions();
  if (!job.calls.empty()) result["outputs"] = evaluate(job, engine, tensors);
}

int run(const char* path) {
  const auto job = harness::read_job(path);
  const auto engine = harness::make_engine();
  auto result = harness::begin_result(job);
  result["runtime"] = {{"name", engine->runtime()}, {"version", engine->version()}};
  int code = 0;
  try {
    carry_out(job, *engine, result);
  } catch (const Failure& failure) {
    result["status"] = "failed";
    result["error"] = {{"stage", failure.stage()}, {"message", failure.what()}};
    std::fprintf(stderr, "error: %s: %s\n", failure.stage().c_str(), failure.what());
    code = failure.stage() == "write" ? 4 : 3;
  }
  harness::write_result(job.result_file, std::move(result));
  std::printf("%s %s\n", harness::kEndMarker, job.id.c_str());
  return std::fflush(stdout) == 0 ? code : 4;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s JOB.json\n", count > 0 ? arguments[0] : "harness");
    return 2;
  }
  try {
    return run(arguments[1]);
  } catch (const Failure& failure) {
    std::fprintf(stderr, "error: %s: %s\n", failure.stage().c_str(), failure.what());
    return failure.stage() == "write" ? 4 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 3;
  }
}
