// Reading and writing safetensors: an 8-byte length, a JSON header, then the tensors' bytes, little-endian, in C order.

/** safetensors' name of a dtype -> the typed array that holds it. F16 and BOOL travel as raw bits. */
export const ARRAYS = {
  BOOL: Uint8Array,
  U8: Uint8Array,
  I8: Int8Array,
  I16: Int16Array,
  I32: Int32Array,
  I64: BigInt64Array,
  F16: Uint16Array,
  F32: Float32Array,
  F64: Float64Array,
};

/** @returns name -> {dtype, dims, data} */
export function read(buffer) {
  const view = new DataView(buffer);
  const length = Number(view.getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = {};
  for (const [name, entry] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    const [start, end] = entry.data_offsets;
    // A copy: typed arrays need their data aligned, and a file does not promise that.
    const bytes = buffer.slice(8 + length + start, 8 + length + end);
    tensors[name] = { dtype: entry.dtype, dims: entry.shape, data: new ARRAYS[entry.dtype](bytes) };
  }
  return tensors;
}

/** @param tensors name -> {dtype, dims, data} @returns the parts of the file, for a Blob */
export function write(tensors) {
  const header = {};
  const parts = [];
  let offset = 0;
  for (const [name, { dtype, dims, data }] of Object.entries(tensors)) {
    header[name] = { dtype, shape: [...dims], data_offsets: [offset, offset + data.byteLength] };
    parts.push(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    offset += data.byteLength;
  }
  let text = JSON.stringify(header);
  const encoder = new TextEncoder();
  text += ' '.repeat((8 - (encoder.encode(text).length % 8)) % 8);
  const encoded = encoder.encode(text);
  const length = new DataView(new ArrayBuffer(8));
  length.setBigUint64(0, BigInt(encoded.length), true);
  return [new Uint8Array(length.buffer), encoded, ...parts];
}
