// The JSON a job ends in. Schema: device_bench/harness_result.schema.json.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "job.h"
#include "measure.h"

namespace harness {

constexpr int kResultSchemaVersion = 1;
// The last member of every complete result, and the first word of the last line on stdout.
constexpr const char* kEndMarker = "edgeport-end-of-run";

// What can be said of a job before anything was tried.
nlohmann::json begin_result(const Job& job);

void add_measurement(nlohmann::json& result, const Measurement& measurement);

// Writes the file under a temporary name, flushes it and renames it, so that it is there whole or not at all.
void write_result(const std::string& path, nlohmann::json result);

}  // namespace harness
