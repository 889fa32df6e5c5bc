
/** The class with the highest score, for each row of the last dimension. */
export function classes({ data, dims }) {
  const count = dims[dims.length - 1];
  return Array.from({ length: data.length / count }, (_, row) => {
    const scores = data.slice(row * count, (row + 1) * count);
    return scores.indexOf(scores.reduce((most, x) => (x > most ? x : most)));
  });
}
