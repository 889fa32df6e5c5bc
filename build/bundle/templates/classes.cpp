
/** The class with the highest score, for each row of the last dimension. */
template <typename T>
std::vector<std::size_t> classes(const Tensor<T>& scores) {
  const auto count = static_cast<std::ptrdiff_t>(scores.shape.back());
  std::vector<std::size_t> found;
  for (auto row = scores.data.begin(); row != scores.data.end(); row += count) {
    found.push_back(static_cast<std::size_t>(std::max_element(row, row + count) - row));
  }
  return found;
}

std::vector<std::string> lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> found;
  for (std::string line; std::getline(file, line);) found.push_back(line);
  return found;
}
