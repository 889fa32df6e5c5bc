#include "result.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "failure.h"
#include "system.h"

namespace harness {

nlohmann::json begin_result(const Job& job) {
  return {{"schema_version", kResultSchemaVersion},
          {"job", job.id},
          {"artifact_sha256", job.artifact_sha256},
          {"harness", HARNESS_VERSION},
          {"status", "ok"},
          {"error", nullptr},
          {"settings",
           {{"threads", job.threads},
            {"affinity", job.affinity},
            {"warmup_runs", job.warmup_runs},
            {"warmup_seconds", job.warmup_seconds},
            {"min_runs", job.min_runs},
            {"min_seconds", job.min_seconds},
            {"max_runs", job.max_runs},
            {"max_seconds", job.max_seconds}}},
          {"timed_call", job.timed.id},
          {"clock", "std::chrono::steady_clock"},
          {"timer_cost_ns", timer_cost_ns()},
          {"cpu", cpu_facts()},
          {"before", conditions()}};
}

void add_measurement(nlohmann::json& result, const Measurement& measurement) {
  result["load_ns"] = measurement.load_ns;
  result["first_ns"] = measurement.first_ns;
  result["warmup"] = {{"runs", measurement.warmup_runs}, {"ns", measurement.warmup_ns}};
  result["samples_ns"] = measurement.samples_ns;
  result["loop_ns"] = measurement.loop_ns;
  result["memory"] = {{"rss_before_load", measurement.rss_before_load},
                      {"rss_after_load", measurement.rss_after_load},
                      {"peak_rss", measurement.peak_rss},
                      {"peak_rss_end", measurement.peak_rss_end},
                      {"samples_bytes", measurement.samples_bytes}};
  result["threads"]["alive"] = measurement.threads_alive;
  if (measurement.threads_busy) {
    result["threads"]["busy"] = *measurement.threads_busy;
  } else {
    result["threads"]["busy"] = nullptr;
  }
}

void write_result(const std::string& path, nlohmann::json result) {
  const auto text = result.dump();
  // The marker is put at the very end of the text: a file cut short anywhere does not have it.
  const auto whole = text.substr(0, text.size() - 1) + ",\"end\":\"" + kEndMarker + "\"}\n";
  const auto temporary = path + ".part";
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) throw Failure("write", "cannot write '" + temporary + "': " + std::strerror(errno));
  std::size_t at = 0;
  while (at < whole.size()) {
    const auto done = ::write(descriptor, whole.data() + at, whole.size() - at);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      const std::string why = std::strerror(errno);
      ::close(descriptor);
      throw Failure("write", "cannot write '" + temporary + "': " + why);
    }
    at += static_cast<std::size_t>(done);
  }
  if (::fsync(descriptor) != 0 || ::close(descriptor) != 0 || std::rename(temporary.c_str(), path.c_str()) != 0) {
    throw Failure("write", "cannot write '" + path + "': " + std::strerror(errno));
  }
}

}  // namespace harness
