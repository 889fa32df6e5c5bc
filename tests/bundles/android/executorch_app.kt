// An app that uses the snippet of the digits model: arguments are the unpacked bundle and the model's path in it.
import edgeport.digits_cnn.DigitsCnn
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.pytorch.executorch.Module
import org.pytorch.executorch.Tensor

fun floats(file: File): FloatArray {
    val data = ByteBuffer.wrap(file.readBytes()).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
    return FloatArray(data.remaining()).also { data.get(it) }
}

fun main(args: Array<String>) {
    val bundle = File(args[0])
    val image = floats(File(bundle, "selftest/000/in0.bin"))
    val wanted = floats(File(bundle, "selftest/000/out0.bin"))
    Module.answer = { path, method, inputs ->
        check(path == File(bundle, args[1]).path && method == "forward" && inputs.size == 1)
        check(inputs[0].dataAsFloatArray.contentEquals(image))
        listOf(Tensor.fromBlob(wanted, longArrayOf(inputs[0].shape()[0], 10)))
    }
    val model = DigitsCnn(File(bundle, args[1]).path)
    val logits = model.run(image, longArrayOf(1, 1, 8, 8)).logits
    check(logits.contentEquals(wanted))
    println("-> ${File(bundle, "labels.txt").readLines()[logits.indices.maxByOrNull { logits[it] }!!]}")
    for (shape in listOf(longArrayOf(65, 1, 8, 8), longArrayOf(1, 8, 8), longArrayOf(1, 1, 8, 9), longArrayOf(0, 1, 8, 8))) {
        try {
            model.run(FloatArray(shape.reduce(Long::times).toInt()), shape)
        } catch (error: IllegalArgumentException) {
            println("refused: ${error.message}")
        }
    }
}
