// The part of LiteRT's Interpreter API that the snippets use, as its sources declare it (org.tensorflow.lite), with a
// stand-in for the native runtime. As there: an output is put where its buffer stands, which moves the buffer to its end.
package org.tensorflow.lite

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder

class Tensor(private val sizes: IntArray, private val width: Int) {
    fun shape(): IntArray = sizes.copyOf()

    fun numBytes(): Int = sizes.fold(width) { product, n -> product * n }
}

class Interpreter(private val file: File) {
    private val sizes = sortedMapOf<Int, IntArray>()
    private var allocated = false

    fun resizeInput(index: Int, dims: IntArray) {
        sizes[index] = dims
        allocated = false
    }

    fun allocateTensors() {
        allocated = true
    }

    fun getOutputTensorFromSignature(outputName: String?, signatureKey: String?): Tensor {
        check(allocated) { "its size is not known before allocateTensors" }
        return Tensor(outputShape(file, signatureKey!!, outputName!!, sizes.values.toList()), 4)
    }

    fun runSignature(inputs: Map<String, Any>, outputs: Map<String, Any>, signatureKey: String) {
        for (buffer in inputs.values + outputs.values) {
            require((buffer as ByteBuffer).isDirect && buffer.order() == ByteOrder.nativeOrder()) { "not a direct buffer" }
        }
        val answers = answer(signatureKey, inputs.mapValues { it.value as ByteBuffer })
        for ((name, buffer) in outputs) (buffer as ByteBuffer).put(answers.getValue(name))
    }

    companion object {
        /** File, signature, output and the resized inputs' shapes -> the output's shape. */
        var outputShape: (File, String, String, List<IntArray>) -> IntArray = { _, _, _, _ -> error("no shape is set") }

        /** Signature and inputs -> outputs. */
        var answer: (String, Map<String, ByteBuffer>) -> Map<String, ByteArray> = { _, _ -> error("no answer is set") }
    }
}
