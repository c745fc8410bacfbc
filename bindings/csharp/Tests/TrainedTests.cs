using System;
using System.IO;
using Kvq.Raw;

namespace Kvq.Tests
{
    /// Files that were trained for the demonstration model.
    static class TrainedTests
    {
        static byte[] Demo(string name)
        {
            string path = Path.Combine(LibraryTests.Folder ?? "", "..", "models", "demo", name);
            if (!File.Exists(path)) Test.Skip("there is no " + path);
            return File.ReadAllBytes(path);
        }

        static CacheOptions Shape() =>
            new CacheOptions { NLayers = 6, QHeads = 4, KvHeads = 2, HeadDim = 128, RopeBase = 500000 };

        /// A policy needs what was trained, and takes it.
        static void Needed(Context context, string yaml, string missing, CacheOptions with)
        {
            using (Policy policy = Policy.Load(context, yaml))
            {
                Test.Refused(Status.Argument, missing, () => new Cache(context, Shape(), policy));
                using (var cache = new Cache(context, with, policy))
                using (var sequence = new Sequence(cache))
                    sequence.Append(0, Model.Numbers(70 * 256, 1), Model.Numbers(70 * 256, 2));
            }
        }

        public static void Codebooks_are_loaded_described_used_and_saved()
        {
            using (var context = new Context())
            using (Codebook codebook = Codebook.Load(context, Demo("commvq-2bit.safetensors")))
            {
                Test.Equal(Convert.ToBase64String(Demo("commvq-2bit.safetensors")),
                    Convert.ToBase64String(codebook.Save()), "the file");
                CodebookInfo info = codebook.Describe();
                Test.Equal("6 6 2 128", string.Join(" ", info.NLayers, info.LayersPresent, info.KvHeads, info.HeadDim),
                    "codebooks");
                CodebookLayerInfo layer = codebook.DescribeLayer(5);
                Test.Equal(Constants.MaxKeyStages, layer.KeyStageErrors.Length, "stages");
                Test.Equal(layer.KeyError, layer.KeyStageErrors[info.KeyStages - 1], "error of the last stage");
                Test.Refused(Status.Argument, "layer", () => codebook.DescribeLayer(6));
                CacheOptions options = Shape();
                options.Codebook = codebook;
                Needed(context, "commvq", "codebook", options);
                codebook.Dispose();
                Test.Throws<ObjectDisposedException>("Codebook", () => new Cache(context, options));
                Test.Refused(Status.Format, "", () => Codebook.Load(context, new byte[0]));
                Test.Throws<ArgumentNullException>("file", () => Codebook.Load(context, null));
                Test.Throws<ArgumentNullException>("context", () => Codebook.Load(null, new byte[1]));
            }
        }

        public static void Centres_are_loaded_described_used_and_saved()
        {
            using (var context = new Context())
            using (Centres centres = Centres.Load(context, Demo("centres.safetensors")))
            {
                Test.Equal(Convert.ToBase64String(Demo("centres.safetensors")), Convert.ToBase64String(centres.Save()),
                    "the file");
                Test.Equal(6, centres.Describe().NLayers, "layers");
                CentresLayerInfo layer = centres.DescribeLayer(5);
                Test.True(layer.Present && layer.KeyResidual > 0 && layer.KeyResidual < 1, "residual of keys");
                CacheOptions options = Shape();
                options.Centres = centres;
                Needed(context, "gs2+centres", "centres", options);
            }
        }

        public static void Routers_are_loaded_described_used_and_saved()
        {
            using (var context = new Context())
            using (Router router = Router.Load(context, Demo("moqae.safetensors")))
            {
                Test.Equal(Convert.ToBase64String(Demo("moqae.safetensors")), Convert.ToBase64String(router.Save()),
                    "the file");
                RouterInfo info = router.Describe();
                Test.Equal("6 3 Label fp16, int4, int2", string.Join(" ", info.NLayers, info.NExperts, info.Method,
                    info.Experts), "routers");
                double sum = 0;
                foreach (double share in router.DescribeGroup(0).Shares) sum += share;
                Test.Near(1, sum, 1e-9, "sum of shares");
                CacheOptions options = Shape();
                options.Router = router;
                Needed(context, "{version: 1, router: {experts: [" + info.Experts + "]}}", "router", options);
            }
        }

        /// The experimental part is called as it is, with the handle of an object.
        public static unsafe void A_plan_is_made_in_the_raw_layer()
        {
            using (var context = new Context())
            {
                var error = new kvq_error { struct_size = (uint)sizeof(kvq_error) };
                var content = default(kvq_plan_content);
                ExperimentalNative.kvq_plan_content_init(&content, (UIntPtr)sizeof(kvq_plan_content));
                byte[] name = { (byte)'u', (byte)'p', 0 }, scheme = { (byte)'f', (byte)'p', (byte)'1', (byte)'6', 0 };
                IntPtr plan;
                fixed (byte* up = name, fp16 = scheme)
                {
                    byte* names = up, schemes = fp16;
                    content.n_matrices = 1;
                    content.names = &names;
                    content.schemes = &schemes;
                    Status status = ExperimentalNative.kvq_plan_create(context.Handle.DangerousGetHandle(), &content,
                        &plan, &error);
                    Test.Equal(Status.Ok, status, "status");
                    byte* found = ExperimentalNative.kvq_plan_scheme(plan, up);
                    Test.Equal("fp16", new string((sbyte*)found), "the scheme");
                }
                ExperimentalNative.kvq_plan_destroy(plan);
            }
        }
    }
}
