// Numbers of tensors: half precision comes as raw bits, or as a Float16Array where the browser has that.

/** @param tensor {dtype, data} @returns its numbers, which JavaScript can count with */
export function numbers({ dtype, data }) {
  if (dtype === 'I64') return Float64Array.from(data, Number);
  if (dtype !== 'F16') return data;
  return data instanceof Uint16Array ? Float64Array.from(data, decoded) : Float64Array.from(data);
}

function decoded(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}
