using System;
using System.IO;
using Kvq.Raw;

namespace Kvq.Tests
{
    static class TrainedTests
    {
        static byte[] Demo(string name)
        {
            string path = Path.Combine(LibraryTests.Folder ?? "", "..", "models", "demo", name + ".safetensors");
            if (!File.Exists(path)) Test.Skip("there is no " + path);
            return File.ReadAllBytes(path);
        }

        /// A file of the demonstration model is saved unchanged; a policy that needs it refuses a cache without it.
        static void LoadedSavedAndUsed<T>(FileKind kind, string file, string yaml, Func<Context, byte[], T> load,
            Func<T, byte[]> save, Action<CacheOptions, T> set, Action<T> described) where T : NativeObject
        {
            var options = new CacheOptions { NLayers = 6, QHeads = 4, KvHeads = 2, HeadDim = 128 };
            using (var context = new Context())
            using (Policy policy = Policy.Load(context, yaml))
            using (T it = load(context, Demo(file)))
            {
                Test.Equal(kind, context.FileType(Demo(file)), "kind of file");
                Test.Equal(FileKind.Unknown, context.FileType(new byte[0]), "kind of an empty file");
                Test.Equal(Convert.ToBase64String(Demo(file)), Convert.ToBase64String(save(it)), "the file");
                described(it);
                Test.Refused(Status.Argument, "", () => new Cache(context, options, policy));
                set(options, it);
                using (var cache = new Cache(context, options, policy))
                using (var sequence = new Sequence(cache))
                    sequence.Append(0, Model.Numbers(70 * 256, 1), Model.Numbers(70 * 256, 2));
                it.Dispose();
                Test.Throws<ObjectDisposedException>(typeof(T).Name, () => new Cache(context, options, policy));
                Test.Refused(Status.Format, "", () => load(context, new byte[0]));
                Test.Throws<ArgumentNullException>("file", () => load(context, null));
                Test.Throws<ArgumentNullException>("context", () => load(null, new byte[1]));
            }
        }

        public static void Codebooks() => LoadedSavedAndUsed(FileKind.Codebook, "commvq-2bit", "commvq",
            Codebook.Load, it => it.Save(), (options, it) => options.Codebook = it, it =>
            {
                CodebookInfo info = it.Describe();
                CodebookLayerInfo layer = it.DescribeLayer(5);
                Test.Equal("6 2 128", string.Join(" ", info.NLayers, info.KvHeads, info.HeadDim), "codebooks");
                Test.Equal(Constants.MaxKeyStages, layer.KeyStageErrors.Length, "stages");
                Test.Equal(layer.KeyError, layer.KeyStageErrors[info.KeyStages - 1], "error of the last stage");
                Test.Refused(Status.Argument, "layer", () => it.DescribeLayer(6));
            });

        public static void Centres_of_a_model() => LoadedSavedAndUsed(FileKind.Centres, "centres", "gs2+centres",
            Centres.Load, it => it.Save(), (options, it) => options.Centres = it, it =>
            {
                Test.Equal(6, it.Describe().NLayers, "layers");
                Test.True(it.DescribeLayer(5).Present && it.DescribeLayer(5).KeyResidual > 0, "residual of keys");
                LayerScales none = it.ReadScales(5);
                Test.True(none.KeyScales == null && none.ValueScales == null && none.ValueOffsets == null, "no scales");
            });

        public static void Scales_of_channels()
        {
            using (var context = new Context())
            using (Centres it = Centres.Load(context, Demo("scales")))
            {
                LayerScales fifth = it.ReadScales(4), sixth = it.ReadScales(5);
                Test.Equal("256 256 256", string.Join(" ", sixth.KeyScales.Length, sixth.ValueScales.Length,
                    sixth.ValueOffsets.Length), "lengths");
                for (int i = 0; i < 256; ++i)
                    Test.True(sixth.KeyScales[i] > 0 && sixth.KeyScales[i] <= 1 && sixth.ValueScales[i] > 0 &&
                        sixth.ValueScales[i] <= 1, "scales of channel " + i);
                for (int i = 0; i < 64; ++i)
                    Test.Equal(sixth.KeyScales[i], sixth.KeyScales[64 + i], "scale of a pair");
                Test.True(string.Join(" ", fifth.KeyScales) != string.Join(" ", sixth.KeyScales), "another layer");
                Test.Refused(Status.Argument, "layer is 6", () => it.ReadScales(6));
            }
        }

        public static void Routers() => LoadedSavedAndUsed(FileKind.Router, "moqae",
            "{version: 1, router: {experts: [fp16, int4, int2]}}", Router.Load, it => it.Save(),
            (options, it) => options.Router = it, it =>
            {
                RouterInfo info = it.Describe();
                Test.Equal("3 Label fp16, int4, int2", string.Join(" ", info.NExperts, info.Method, info.Experts),
                    "routers");
                Test.Equal(3, it.DescribeGroup(1).FirstLayer, "first layer");
            });

        /// Experimental functions are called through the raw layer, with the handle of an object.
        public static unsafe void A_plan_is_made_in_the_raw_layer()
        {
            using (var context = new Context())
            {
                var error = new kvq_error { struct_size = (uint)sizeof(kvq_error) };
                var content = default(kvq_plan_content);
                ExperimentalNative.kvq_plan_content_init(&content, (UIntPtr)sizeof(kvq_plan_content));
                IntPtr plan;
                // "u", "fp16"
                fixed (byte* up = new byte[] { 0x75, 0 }, fp16 = new byte[] { 0x66, 0x70, 0x31, 0x36, 0 })
                {
                    byte* names = up, schemes = fp16;
                    content.n_matrices = 1;
                    content.names = &names;
                    content.schemes = &schemes;
                    Test.Equal(Status.Ok, ExperimentalNative.kvq_plan_create(context.Handle.DangerousGetHandle(),
                        &content, &plan, &error), "status");
                    Test.Equal("fp16", new string((sbyte*)ExperimentalNative.kvq_plan_scheme(plan, up)), "the scheme");
                }
                ExperimentalNative.kvq_plan_destroy(plan);
            }
        }
    }
}
