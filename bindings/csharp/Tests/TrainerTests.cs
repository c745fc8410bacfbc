using System;
using Kvq.Experimental;

namespace Kvq.Tests
{
    static class TrainerTests
    {
        const string Experts = "{version: 1, router: {experts: [fp16, int4, int2]}}";

        static CodebookTrainerOptions Small() => new CodebookTrainerOptions
        {
            NLayers = Model.Layers, KvHeads = Model.KvHeads, HeadDim = Model.HeadDim, KeyStages = 2, KeyCodes = 8,
            KeyRounds = 1, ValueBits = 1, ValueRounds = 2, ValueScope = Scope.Head, Seed = 5, ModelId = 7,
            Note = "klein, größer",
        };

        static bool Tired(double done)
        {
            throw new TimeoutException("enough");
        }

        internal static CodebookTrainer Filled(Context context)
        {
            var trainer = new CodebookTrainer(context, Small());
            for (int layer = 0; layer < Model.Layers; ++layer)
                trainer.Add(layer, Model.Numbers(160 * Model.Row, 10 + (uint)layer),
                    Model.Numbers(160 * Model.Row, 20));
            return trainer;
        }

        public static void Codebooks_are_trained_saved_resumed_and_used()
        {
            using (var context = new Context())
            using (CodebookTrainer trainer = Filled(context))
            {
                Test.Throws<TimeoutException>("enough", () => trainer.Run(0, Tired));
                Test.Refused(Status.Cancelled, "", () => trainer.Run(0, done => false));
                trainer.Run(0);
                Test.Refused(Status.State, "layer", () => trainer.Run(0));
                byte[] half;
                using (Codebook unfinished = trainer.Result())
                {
                    Test.Equal(1, unfinished.Describe().LayersPresent, "layers present");
                    half = unfinished.Save();
                }
                trainer.Run(1);
                using (Codebook codebook = trainer.Result())
                {
                    CodebookInfo info = codebook.Describe();
                    Test.Equal("2 2 2 16 2 8 160 klein, größer", string.Join(" ", info.NLayers, info.LayersPresent,
                        info.KvHeads, info.HeadDim, info.KeyStages, info.KeyCodes, info.Tokens, info.Note),
                        "codebooks");
                    CodebookLayerInfo layer = codebook.DescribeLayer(1);
                    Test.Equal(Constants.MaxKeyStages, layer.KeyStageErrors.Length, "stages");
                    Test.Equal(layer.KeyError, layer.KeyStageErrors[1], "error of the last stage");
                    Test.True(layer.KeyStageErrors[0] >= layer.KeyStageErrors[1] && layer.KeyStageErrors[2] == 0,
                        "errors of stages");
                    byte[] file = codebook.Save();
                    using (Codebook again = Codebook.Load(context, file))
                        Test.Equal(Convert.ToBase64String(file), Convert.ToBase64String(again.Save()), "the file");
                    Resumed(context, half, file);
                    Used(context, codebook);
                }
            }
        }

        static void Resumed(Context context, byte[] half, byte[] whole)
        {
            using (CodebookTrainer trainer = Filled(context))
            using (Codebook unfinished = Codebook.Load(context, half))
            {
                trainer.Resume(unfinished);
                trainer.Run(1);
                using (Codebook result = trainer.Result())
                    Test.Equal(Convert.ToBase64String(whole), Convert.ToBase64String(result.Save()),
                        "the resumed file");
            }
        }

        static void Used(Context context, Codebook codebook)
        {
            CacheOptions options = Model.Shape(Rope.Half);
            options.ModelId = 7;
            using (Policy policy = Policy.Load(context, "commvq"))
            {
                Test.Refused(Status.Argument, "codebook", () => new Cache(context, options, policy));
                options.Codebook = codebook;
                using (var cache = new Cache(context, options, policy))
                using (var sequence = new Sequence(cache))
                {
                    float[] k = Model.Numbers(100 * Model.Row, 10);
                    sequence.Append(0, k, k);
                    Test.True(sequence.Usage().SealedBytes > 0, "sealed");
                }
            }
        }

        public static void Wrong_codebook_calls_are_refused()
        {
            using (var context = new Context())
            using (var trainer = new CodebookTrainer(context, Small()))
            {
                Test.Throws<ArgumentException>("k has 31 elements", () => trainer.Add(0, new float[31], new float[31]));
                Test.Throws<ArgumentException>("v has 64 elements", () => trainer.Add(0, new float[32], new float[64]));
                Test.Throws<ArgumentNullException>("v", () => trainer.Add(0, default(Tensor), default(Tensor)));
                Test.Refused(Status.Argument, "k", () => trainer.Add(0, default(Tensor), new float[32]));
                Test.Throws<ArgumentNullException>("codebook", () => trainer.Resume(null));
                Test.Refused(Status.Argument, "key_stages", () =>
                {
                    CodebookTrainerOptions options = Small();
                    options.KeyStages = 65;
                    new CodebookTrainer(context, options);
                });
                Test.Refused(Status.Format, "", () => Codebook.Load(context, new byte[3]));
                Test.Refused(Status.Format, "", () => Router.Load(context, new byte[0]));
            }
        }

        public static void Centres_are_trained_saved_and_used()
        {
            var options = new CentresTrainerOptions
            {
                NLayers = Model.Layers, KvHeads = Model.KvHeads, HeadDim = Model.HeadDim, KeyCentres = 4,
                ValueCentres = 1, Seed = 5, ModelId = 7, Note = "klein, größer",
            };
            using (var context = new Context())
            using (var trainer = new CentresTrainer(context, options))
            {
                for (int layer = 0; layer < Model.Layers; ++layer)
                    trainer.Add(layer, Model.Numbers(160 * Model.Row, 10 + (uint)layer),
                        Model.Numbers(160 * Model.Row, 20));
                Test.Throws<ArgumentException>("k has 31 elements", () => trainer.Add(0, new float[31], new float[31]));
                Test.Throws<TimeoutException>("enough", () => trainer.Run(0, Tired));
                Test.Refused(Status.Cancelled, "", () => trainer.Run(0, done => false));
                for (int layer = 0; layer < Model.Layers; ++layer) trainer.Run(layer);
                Test.Refused(Status.State, "layer", () => trainer.Run(0));
                using (Centres centres = trainer.Result())
                {
                    CentresInfo info = centres.Describe();
                    Test.Equal("2 2 2 16 4 1 160 klein, größer", string.Join(" ", info.NLayers, info.LayersPresent,
                        info.KvHeads, info.HeadDim, info.KeyCentres, info.ValueCentres, info.Tokens, info.Note),
                        "centres");
                    CentresLayerInfo layer = centres.DescribeLayer(1);
                    Test.True(layer.KeyResidual > 0 && layer.KeyResidual < layer.ValueResidual, "residuals");
                    byte[] file = centres.Save();
                    using (Centres again = Centres.Load(context, file))
                        Test.Equal(Convert.ToBase64String(file), Convert.ToBase64String(again.Save()), "the file");
                    CacheOptions shape = Model.Shape(Rope.Half);
                    shape.Centres = centres; // which fp16 does not need
                    new Cache(context, shape, null).Dispose();
                }
                Test.Refused(Status.Format, "", () => Centres.Load(context, new byte[3]));
                options.KeyCentres = 257;
                Test.Refused(Status.Argument, "key_centres", () => new CentresTrainer(context, options));
            }
        }

        public static void Routers_are_trained_saved_and_choose_formats()
        {
            var options = new RouterTrainerOptions { Sharing = 2, Epochs = 2, MeanBits = 8, Seed = 5, Note = "small" };
            using (var context = new Context())
            using (Policy policy = Policy.Load(context, Experts))
            using (var trainer = new RouterTrainer(context, Model.Shape(Rope.Half), policy, options))
            {
                Test.Throws<ArgumentException>("q has 64 elements; [tokens, q_heads, head_dim] takes 128", () =>
                    trainer.Add(0, new float[64], new float[64], new float[64]));
                Test.Refused(Status.State, "", () => trainer.Result());
                for (uint text = 0; text < 2; ++text)
                    for (int layer = 0; layer < Model.Layers; ++layer)
                        trainer.Add(layer, Model.Numbers(200 * Model.QueryRow, text),
                            Model.Numbers(200 * Model.Row, text + 7), Model.Numbers(200 * Model.Row, text + 9));
                Test.Throws<TimeoutException>("enough", () => trainer.Run(0, Tired));
                trainer.Run();
                using (Router router = trainer.Result())
                {
                    RouterInfo info = router.Describe();
                    Test.Equal("2 3 fp16, int4, int2 small", string.Join(" ", info.NLayers, info.NExperts, info.Experts,
                        info.Note), "routers");
                    RouterGroupInfo group = router.DescribeGroup(0);
                    double sum = 0;
                    foreach (double share in group.Shares) sum += share;
                    Test.Equal("0 1", group.FirstLayer + " " + group.LastLayer, "layers of the group");
                    Test.Near(1, sum, 1e-9, "shares");
                    using (Router again = Router.Load(context, router.Save()))
                    {
                        CacheOptions shape = Model.Shape(Rope.Half);
                        shape.Router = again;
                        using (var cache = new Cache(context, shape, policy))
                        {
                            Test.Equal("fp16, int4, int2", cache.DescribeLayer(0).Formats, "formats");
                            Test.Equal(3, cache.DescribeLayer(0).NFormats, "number of formats");
                        }
                    }
                }
            }
        }
    }
}
