// An app that uses the snippet of the digits model: arguments are the unpacked bundle and the model's path in it.
import edgeport.digits_cnn.DigitsCnn
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.tensorflow.lite.Interpreter

fun direct(data: ByteArray): ByteBuffer =
    ByteBuffer.allocateDirect(data.size).order(ByteOrder.nativeOrder()).also { it.put(data).rewind() }

fun main(args: Array<String>) {
    val bundle = File(args[0])
    val image = File(bundle, "selftest/000/in0.bin").readBytes()
    val wanted = File(bundle, "selftest/000/out0.bin").readBytes()
    Interpreter.outputShape = { file, signature, output, sizes ->
        check(file == File(bundle, args[1]) && signature == args[2] && output == "logits")
        intArrayOf(sizes[0][0], 10)
    }
    Interpreter.answer = { signature, inputs ->
        check(signature == args[2] && inputs.keys == setOf("image"))
        mapOf("logits" to wanted)
    }
    val model = DigitsCnn(File(bundle, args[1]))
    val found = model.run(direct(image), longArrayOf(1, 1, 8, 8))
    check(found.logitsShape.contentEquals(intArrayOf(1, 10)))
    check(found.logits.remaining() == wanted.size) { "the buffer is at its end" }
    val logits = FloatArray(10).also { found.logits.asFloatBuffer().get(it) }
    println("-> ${File(bundle, "labels.txt").readLines()[logits.indices.maxByOrNull { logits[it] }!!]}")
    for (shape in listOf(longArrayOf(65, 1, 8, 8), longArrayOf(1, 8, 8), longArrayOf(1, 1, 8, 9), longArrayOf(0, 1, 8, 8))) {
        try {
            model.run(direct(ByteArray(4 * shape.reduce(Long::times).toInt())), shape)
        } catch (error: IllegalArgumentException) {
            println("refused: ${error.message}")
        }
    }
}
