// Gives the dynamic dimensions of a .tflite's inputs and outputs fixed sizes, in a copy of its bytes.
//
// LiteRT.js refuses any tensor whose signature holds -1. The sizes of a call are known before the model is compiled,
// so they are written where the -1 stands; everything in between follows from the inputs when the model is prepared.
// Layout: tensorflow/compiler/mlir/lite/schema/schema.fbs, and the FlatBuffers binary format.

const MODEL = { subgraphs: 2, signatures: 7 };
const SUBGRAPH = { tensors: 0 };
const TENSOR = { shape: 0, shapeSignature: 7 };
const SIGNATURE = { inputs: 0, outputs: 1, key: 2, subgraph: 4 };
const TENSOR_MAP = { name: 0, index: 1 };

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Where a field of a table lies; 0 when it is not there. */
  field(table, number) {
    const vtable = table - this.view.getInt32(table, true);
    const slot = 4 + 2 * number;
    const offset = slot < this.view.getUint16(vtable, true) ? this.view.getUint16(vtable + slot, true) : 0;
    return offset === 0 ? 0 : table + offset;
  }

  follow(position) {
    return position + this.view.getUint32(position, true);
  }

  /** Positions of a vector's elements, 4 bytes each. */
  vector(table, number) {
    const field = this.field(table, number);
    if (field === 0) return [];
    const start = this.follow(field);
    return Array.from({ length: this.view.getUint32(start, true) }, (_, i) => start + 4 + 4 * i);
  }

  tables(table, number) {
    return this.vector(table, number).map((p) => this.follow(p));
  }

  text(table, number) {
    const field = this.field(table, number);
    if (field === 0) return '';
    const start = this.follow(field);
    const length = this.view.getUint32(start, true);
    return new TextDecoder().decode(this.bytes.subarray(start + 4, start + 4 + length));
  }

  uint32(table, number) {
    const field = this.field(table, number);
    return field === 0 ? 0 : this.view.getUint32(field, true);
  }
}

/**
 * A copy of the model with every -1 of one signature's inputs and outputs replaced.
 *
 * @param bytes the .tflite
 * @param key the signature
 * @param shapes {name: [size, …]} of its inputs and outputs
 * @returns {bytes, fixed}: the copy, and what was fixed, as ['image [-1, 1, 8, 8] -> [1, 1, 8, 8]', …]
 */
export function fixShapes(bytes, key, shapes) {
  const copy = bytes.slice();
  const reader = new Reader(copy);
  const root = reader.follow(0);
  const signature = reader.tables(root, MODEL.signatures).find((s) => reader.text(s, SIGNATURE.key) === key);
  if (signature === undefined) throw new Error(`the model has no signature '${key}'`);
  const subgraph = reader.tables(root, MODEL.subgraphs)[reader.uint32(signature, SIGNATURE.subgraph)];
  const tensors = reader.tables(subgraph, SUBGRAPH.tensors);
  const fixed = [];
  for (const side of [SIGNATURE.inputs, SIGNATURE.outputs]) {
    for (const entry of reader.tables(signature, side)) {
      const name = reader.text(entry, TENSOR_MAP.name);
      const line = fixTensor(reader, tensors[reader.uint32(entry, TENSOR_MAP.index)], name, shapes[name]);
      if (line !== null) fixed.push(line);
    }
  }
  return { bytes: copy, fixed };
}

function fixTensor(reader, tensor, name, sizes) {
  const at = reader.vector(tensor, TENSOR.shapeSignature);
  const declared = at.map((p) => reader.view.getInt32(p, true));
  if (!declared.includes(-1)) return null;
  const shape = reader.vector(tensor, TENSOR.shape);
  if (!sizes || sizes.length !== declared.length || shape.length !== declared.length) {
    throw new Error(`the size of '${name}' [${declared.join(', ')}] is not known before the model runs`);
  }
  declared.forEach((size, axis) => {
    if (size !== -1) return;
    reader.view.setInt32(at[axis], sizes[axis], true);
    reader.view.setInt32(shape[axis], sizes[axis], true);
  });
  return `${name} [${declared.join(', ')}] -> [${sizes.join(', ')}]`;
}
