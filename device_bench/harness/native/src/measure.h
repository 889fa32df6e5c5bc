// The measured part of a job.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "engine.h"

namespace harness {

struct Measurement {
  std::int64_t load_ns = 0;
  std::int64_t first_ns = 0;
  std::int64_t warmup_runs = 0;
  std::int64_t warmup_ns = 0;
  std::vector<std::int64_t> samples_ns;
  std::int64_t loop_ns = 0;  // the whole timed loop, its bookkeeping included
  std::int64_t rss_before_load = -1;
  std::int64_t rss_after_load = -1;
  std::int64_t peak_rss = -1;      // after the warm-up, before the harness makes room for its samples
  std::int64_t peak_rss_end = -1;  // after the timed loop, the room for samples included
  std::int64_t samples_bytes = 0;  // that room
  int threads_alive = 0;            // threads of the process after the timed loop
  std::optional<int> threads_busy;  // of those, the ones that did a real share of the work
};

// Load, first inference, warm-up, timed loop. Throws Failure.
Measurement measure(const Job& job, Engine& engine, const TensorFile& tensors);

// The tensors of a call, in the order of the job's inputs. Throws Failure when one is not what the input takes.
std::vector<const TensorView*> tensors_of(const Job& job, const Call& call, const TensorFile& tensors);

}  // namespace harness
