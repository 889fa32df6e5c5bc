// @MODEL_NAME@ with Core ML, @DEPLOYMENT@ or later.
import CoreML
import Foundation

/// @SUMMARY@
final class @CLASS@ {
    private let model: MLModel

    struct Outputs {
@OUTPUT_FIELDS_SWIFT@
    }

    /// - Parameter package: @MODEL@, as it lies in the bundle (an app compiles it in Xcode and passes the .mlmodelc).
    init(package: URL, configuration: MLModelConfiguration = MLModelConfiguration()) throws {
        let compiled = package.pathExtension == "mlmodelc" ? package : try MLModel.compileModel(at: package)
        model = try MLModel(contentsOf: compiled, configuration: configuration)
    }

@INPUT_DOC_SWIFT@
    func run(@INPUT_PARAMETERS_SWIFT@) throws -> Outputs {
        var sizes: [String: Int] = [:]
@CHECKS_SWIFT@
        let features = try MLDictionaryFeatureProvider(dictionary: [
@FEATURES_SWIFT@
        ])
        let result = try model.prediction(from: features)
@OUTPUT_GUARDS_SWIFT@
        return Outputs(@OUTPUT_VALUES_SWIFT@)
    }

    struct OutOfRange: Error {
        let message: String
    }

    private struct Dim {
        let symbol: String?
        let low: Int
        let high: Int?
        var scale = 1
        var offset = 0
    }

    /// Refuse what the model does not take.
    private func check(_ name: String, _ array: MLMultiArray, _ dims: [Dim], _ sizes: inout [String: Int]) throws {
        guard array.shape.count == dims.count else {
            throw OutOfRange(message: "\(name) must have \(dims.count) dimensions")
        }
        for (axis, dim) in dims.enumerated() {
            let size = array.shape[axis].intValue
            let high = dim.high ?? Int.max
            guard size >= dim.low, size <= high, (size - dim.offset) % dim.scale == 0 else {
                throw OutOfRange(message: "dimension \(axis) of \(name) is \(size)")
            }
            guard let symbol = dim.symbol else { continue }
            let root = (size - dim.offset) / dim.scale
            guard sizes[symbol] == nil || sizes[symbol] == root else {
                throw OutOfRange(message: "dimension \(axis) of \(name) is \(size): it must go with \(symbol)")
            }
            sizes[symbol] = root
        }
    }
}
