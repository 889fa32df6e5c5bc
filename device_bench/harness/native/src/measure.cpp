#include "measure.h"

#include <algorithm>
#include <map>

#include "failure.h"
#include "system.h"

namespace harness {
namespace {

constexpr double kNsPerSecond = 1e9;
// A thread that was on a CPU for at least one part in this many of the busiest one's time took part in the work.
constexpr std::int64_t kBusyShare = 20;
// The kernel's accounts lag behind by up to a tick, 10 ms at most: of a shorter loop they say nothing.
constexpr std::int64_t kLeastAccounted = 20'000'000;

std::int64_t to_ns(double seconds) { return static_cast<std::int64_t>(seconds * kNsPerSecond); }

std::int64_t timed_run(Engine& engine) {
  const auto start = now_ns();
  if (!engine.run()) throw Failure("run", engine.error());
  return now_ns() - start;
}

// Room for the samples that the loop should take, touched in advance, so that the loop itself allocates nothing. It
// grows between two runs where the warm-up was slower than the loop: the loop never ends for want of room.
std::size_t room_for(const Job& job, std::int64_t fastest_ns) {
  const auto by_time = to_ns(job.min_seconds) / std::max<std::int64_t>(fastest_ns / 4, 1) + 1;
  return static_cast<std::size_t>(std::min(std::max(job.min_runs, by_time), job.max_runs));
}

std::optional<int> busy_threads(const std::vector<std::pair<int, std::int64_t>>& before,
                                const std::vector<std::pair<int, std::int64_t>>& after) {
  if (after.empty()) return std::nullopt;
  const std::map<int, std::int64_t> old(before.begin(), before.end());
  std::vector<std::int64_t> spent;
  for (const auto& [id, time] : after) {
    const auto found = old.find(id);
    spent.push_back(time - (found == old.end() ? 0 : found->second));
  }
  const auto most = *std::max_element(spent.begin(), spent.end());
  if (most < kLeastAccounted) return std::nullopt;
  return static_cast<int>(
      std::count_if(spent.begin(), spent.end(), [&](auto time) { return time > 0 && time >= most / kBusyShare; }));
}

}  // namespace

std::vector<const TensorView*> tensors_of(const Job& job, const Call& call, const TensorFile& tensors) {
  std::vector<const TensorView*> found;
  for (std::size_t i = 0; i < call.tensors.size(); i++) {
    const auto& tensor = tensors.at(call.tensors[i]);
    const auto& input = job.inputs[i];
    const auto where = "call '" + call.id + "': input '" + input.name + "'";
    if (input.dtype != safetensors_name(tensor.dtype)) throw Failure("tensors", where + " is not " + input.dtype);
    if (tensor.shape.size() != input.shape.size()) throw Failure("tensors", where + " has another rank");
    for (std::size_t axis = 0; axis < input.shape.size(); axis++) {
      const auto [least, most] = input.shape[axis];
      if (tensor.shape[axis] < least || tensor.shape[axis] > most) {
        throw Failure("tensors", where + " has size " + std::to_string(tensor.shape[axis]) + " in dimension " +
                                     std::to_string(axis) + ", outside " + std::to_string(least) + ".." +
                                     std::to_string(most));
      }
    }
    found.push_back(&tensor);
  }
  return found;
}

Measurement measure(const Job& job, Engine& engine, const TensorFile& tensors) {
  Measurement result;
  result.rss_before_load = rss_bytes();
  const auto load_start = now_ns();
  engine.load(job, job.timed.entry);
  result.load_ns = now_ns() - load_start;
  result.rss_after_load = rss_bytes();

  engine.prepare(job.timed.entry, tensors_of(job, job.timed, tensors));
  result.first_ns = timed_run(engine);

  std::int64_t fastest = result.first_ns;
  while (result.warmup_runs < job.warmup_runs || result.warmup_ns < to_ns(job.warmup_seconds)) {
    const auto spent = timed_run(engine);
    fastest = std::min(fastest, spent);
    result.warmup_ns += spent;
    result.warmup_runs++;
    if (result.warmup_ns > to_ns(job.max_seconds)) break;
  }

  result.peak_rss = peak_rss_bytes();
  result.samples_ns.assign(room_for(job, fastest), 1);
  const auto before = thread_times();
  const auto min_ns = to_ns(job.min_seconds), max_ns = to_ns(job.max_seconds);
  std::size_t runs = 0;
  const auto loop_start = now_ns();
  auto end = loop_start;
  const auto max_runs = static_cast<std::size_t>(job.max_runs);
  while (runs < max_runs) {
    const auto elapsed = end - loop_start;
    if (elapsed >= max_ns || (static_cast<std::int64_t>(runs) >= job.min_runs && elapsed >= min_ns)) break;
    if (runs == result.samples_ns.size()) result.samples_ns.resize(std::min(2 * runs, max_runs), 1);
    const auto start = now_ns();
    if (!engine.run()) throw Failure("run", engine.error());
    end = now_ns();
    result.samples_ns[runs++] = end - start;
  }
  result.loop_ns = end - loop_start;
  result.samples_bytes = static_cast<std::int64_t>(result.samples_ns.size() * sizeof(std::int64_t));
  result.samples_ns.resize(runs);
  const auto after = thread_times();
  result.peak_rss_end = peak_rss_bytes();
  result.threads_alive = static_cast<int>(after.size());
  result.threads_busy = busy_threads(before, after);
  return result;
}

}  // namespace harness
