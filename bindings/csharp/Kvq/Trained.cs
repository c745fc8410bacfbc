using System;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>CommVQ codebooks for the layers of one model. Immutable; caches that use it share it.</summary>
    public sealed unsafe class Codebook : NativeObject
    {
        Codebook(CodebookHandle handle, Hooks hooks) : base(handle, hooks) { }

        /// <summary>See <see cref="Native.kvq_codebook_load"/>.</summary>
        /// <param name="context">Where its memory comes from.</param>
        /// <param name="file">Bytes of a file, as <see cref="Save"/> writes it.</param>
        /// <returns>The codebooks.</returns>
        public static Codebook Load(Context context, byte[] file)
        {
            var handle = new CodebookHandle();
            Files.Load(context, file, nameof(file), handle, Native.kvq_codebook_load);
            return new Codebook(handle, context.Hooks);
        }

        /// <summary>See <see cref="Native.kvq_codebook_save"/>.</summary>
        /// <returns>The bytes of a file.</returns>
        public byte[] Save() => Files.Save(this, Native.kvq_codebook_save);

        /// <summary>See <see cref="Native.kvq_codebook_describe"/>.</summary>
        /// <returns>What the codebooks are made for and how well they do.</returns>
        public CodebookInfo Describe()
        {
            var error = Call.Error();
            var info = new kvq_codebook_info { struct_size = (uint)sizeof(kvq_codebook_info) };
            using (Use it = Use()) Call.Check(Native.kvq_codebook_describe(it, &info, &error), &error, Hooks);
            return new CodebookInfo(&info);
        }

        /// <summary>See <see cref="Native.kvq_codebook_describe_layer"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <returns>One layer of the codebooks.</returns>
        public CodebookLayerInfo DescribeLayer(int layer)
        {
            var error = Call.Error();
            var info = new kvq_codebook_layer_info { struct_size = (uint)sizeof(kvq_codebook_layer_info) };
            using (Use it = Use())
                Call.Check(Native.kvq_codebook_describe_layer(it, layer, &info, &error), &error, Hooks);
            return new CodebookLayerInfo(&info);
        }
    }

    /// <summary>What keys and values of one model are stored relative to. Immutable; caches that use them share
    /// them.</summary>
    public sealed unsafe class Centres : NativeObject
    {
        Centres(CentresHandle handle, Hooks hooks) : base(handle, hooks) { }

        /// <summary>See <see cref="Native.kvq_centres_load"/>.</summary>
        /// <param name="context">Where its memory comes from.</param>
        /// <param name="file">Bytes of a file, as <see cref="Save"/> writes it.</param>
        /// <returns>The centres.</returns>
        public static Centres Load(Context context, byte[] file)
        {
            var handle = new CentresHandle();
            Files.Load(context, file, nameof(file), handle, Native.kvq_centres_load);
            return new Centres(handle, context.Hooks);
        }

        /// <summary>See <see cref="Native.kvq_centres_save"/>.</summary>
        /// <returns>The bytes of a file.</returns>
        public byte[] Save() => Files.Save(this, Native.kvq_centres_save);

        /// <summary>See <see cref="Native.kvq_centres_describe"/>.</summary>
        /// <returns>What the centres are made for and how much they take away.</returns>
        public CentresInfo Describe()
        {
            var error = Call.Error();
            var info = new kvq_centres_info { struct_size = (uint)sizeof(kvq_centres_info) };
            using (Use it = Use()) Call.Check(Native.kvq_centres_describe(it, &info, &error), &error, Hooks);
            return new CentresInfo(&info);
        }

        /// <summary>See <see cref="Native.kvq_centres_describe_layer"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <returns>One layer of the centres.</returns>
        public CentresLayerInfo DescribeLayer(int layer)
        {
            var error = Call.Error();
            var info = new kvq_centres_layer_info { struct_size = (uint)sizeof(kvq_centres_layer_info) };
            using (Use it = Use())
                Call.Check(Native.kvq_centres_describe_layer(it, layer, &info, &error), &error, Hooks);
            return new CentresLayerInfo(&info);
        }
    }

    /// <summary>Routers for the layers of one model (MoQAE). Immutable; caches that use it share it.</summary>
    public sealed unsafe class Router : NativeObject
    {
        Router(RouterHandle handle, Hooks hooks) : base(handle, hooks) { }

        /// <summary>See <see cref="Native.kvq_router_load"/>.</summary>
        /// <param name="context">Where its memory comes from.</param>
        /// <param name="file">Bytes of a file, as <see cref="Save"/> writes it.</param>
        /// <returns>The routers.</returns>
        public static Router Load(Context context, byte[] file)
        {
            var handle = new RouterHandle();
            Files.Load(context, file, nameof(file), handle, Native.kvq_router_load);
            return new Router(handle, context.Hooks);
        }

        /// <summary>See <see cref="Native.kvq_router_save"/>.</summary>
        /// <returns>The bytes of a file.</returns>
        public byte[] Save() => Files.Save(this, Native.kvq_router_save);

        /// <summary>See <see cref="Native.kvq_router_describe"/>.</summary>
        /// <returns>What the routers are made for and what they do.</returns>
        public RouterInfo Describe()
        {
            var error = Call.Error();
            var info = new kvq_router_info { struct_size = (uint)sizeof(kvq_router_info) };
            using (Use it = Use()) Call.Check(Native.kvq_router_describe(it, &info, &error), &error, Hooks);
            return new RouterInfo(&info);
        }

        /// <summary>See <see cref="Native.kvq_router_describe_group"/>.</summary>
        /// <param name="group">The group.</param>
        /// <returns>One group of layers.</returns>
        public RouterGroupInfo DescribeGroup(int group)
        {
            var error = Call.Error();
            var info = new kvq_router_group_info { struct_size = (uint)sizeof(kvq_router_group_info) };
            using (Use it = Use())
                Call.Check(Native.kvq_router_describe_group(it, group, &info, &error), &error, Hooks);
            return new RouterGroupInfo(&info);
        }
    }
}
