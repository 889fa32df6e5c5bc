// What a page can know of its inputs before a runtime sees them: the runtimes themselves know no bounds.

/** A failure of one stage of a job. */
export class StageError extends Error {
  constructor(stage, message) {
    super(message);
    this.stage = stage;
  }
}

/** Run a step; what it throws becomes a failure of its stage. */
export async function stage(name, step) {
  try {
    return await step();
  } catch (error) {
    if (error instanceof StageError) throw error;
    throw new StageError(name, error instanceof Error ? error.message || error.name : String(error));
  }
}

/**
 * The inputs of one call, in order, checked against dtype, rank and bounds.
 *
 * @param specs [{name, dtype, shape: [[least, most], …]}]
 * @param names of the tensors of this call, in the order of specs
 * @param tensors name -> {dtype, dims, data}
 */
export function inputsOf(specs, names, tensors) {
  const inputs = {};
  specs.forEach((spec, index) => {
    const tensor = tensors[names[index]];
    if (tensor === undefined) throw new StageError('tensors', `there is no tensor '${names[index]}'`);
    if (tensor.dtype !== spec.dtype) {
      throw new StageError('tensors', `input '${spec.name}' is ${tensor.dtype}, the model takes ${spec.dtype}`);
    }
    checkShape(spec, tensor.dims);
    inputs[spec.name] = tensor;
  });
  return inputs;
}

/** Throws when a shape is outside an input's bounds. */
export function checkShape(spec, dims) {
  if (dims.length !== spec.shape.length) {
    throw new StageError('tensors', `input '${spec.name}' has ${dims.length} dimensions, not ${spec.shape.length}`);
  }
  spec.shape.forEach(([least, most], axis) => {
    if (dims[axis] < least || dims[axis] > most) {
      throw new StageError('tensors', `dimension ${axis} of '${spec.name}' is ${dims[axis]}, not in ${least}..${most}`);
    }
  });
}
