// The part of ExecuTorch's Android API that the snippets use, as its sources declare it
// (extension/android/executorch_android), with a stand-in for the native runtime.
package org.pytorch.executorch

class Tensor private constructor(private val data: Any, private val sizes: LongArray) {
    fun shape(): LongArray = sizes.copyOf()

    val dataAsFloatArray: FloatArray get() = data as FloatArray
    val dataAsDoubleArray: DoubleArray get() = data as DoubleArray
    val dataAsLongArray: LongArray get() = data as LongArray
    val dataAsIntArray: IntArray get() = data as IntArray
    val dataAsByteArray: ByteArray get() = data as ByteArray
    val dataAsUnsignedByteArray: ByteArray get() = data as ByteArray

    companion object {
        @JvmStatic fun fromBlob(data: FloatArray, shape: LongArray): Tensor = checked(data, data.size, shape)
        @JvmStatic fun fromBlob(data: DoubleArray, shape: LongArray): Tensor = checked(data, data.size, shape)
        @JvmStatic fun fromBlob(data: LongArray, shape: LongArray): Tensor = checked(data, data.size, shape)
        @JvmStatic fun fromBlob(data: IntArray, shape: LongArray): Tensor = checked(data, data.size, shape)
        @JvmStatic fun fromBlob(data: ByteArray, shape: LongArray): Tensor = checked(data, data.size, shape)
        @JvmStatic fun fromBlobUnsigned(data: ByteArray, shape: LongArray): Tensor = checked(data, data.size, shape)

        private fun checked(data: Any, size: Int, shape: LongArray): Tensor {
            require(shape.fold(1L) { product, n -> product * n } == size.toLong()) { "inconsistent data capacity" }
            return Tensor(data, shape)
        }
    }
}

class EValue private constructor(private val tensor: Tensor) {
    fun toTensor(): Tensor = tensor

    companion object {
        @JvmStatic fun from(tensor: Tensor): EValue = EValue(tensor)
    }
}

class Module private constructor(private val path: String) {
    fun execute(methodName: String, vararg inputs: EValue): Array<EValue> =
        answer(path, methodName, inputs.map { it.toTensor() }).map { EValue.from(it) }.toTypedArray()

    companion object {
        /** What the runtime answers: path, method and inputs -> outputs. */
        var answer: (String, String, List<Tensor>) -> List<Tensor> = { _, _, _ -> error("no answer is set") }

        @JvmStatic
        @JvmOverloads
        fun load(modelPath: String?, loadMode: Int = 0, numThreads: Int = 0): Module = Module(modelPath!!)
    }
}
