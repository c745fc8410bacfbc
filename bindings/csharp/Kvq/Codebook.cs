using System;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>CommVQ codebooks for the layers of one model. Immutable; caches share it.</summary>
    public sealed unsafe class Codebook : NativeObject
    {
        internal Codebook(CodebookHandle handle, Hooks hooks) : base(handle, hooks) { }

        /// <summary>See <see cref="Native.kvq_codebook_load"/>.</summary>
        /// <param name="context">Context that allocates its memory.</param>
        /// <param name="file">Bytes of a file from <see cref="Save"/>.</param>
        /// <returns>The codebooks.</returns>
        public static Codebook Load(Context context, byte[] file)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            var handle = new CodebookHandle();
            Files.Load(context, file, nameof(file), handle, (it, buffer, size, result, error) =>
                       Native.kvq_codebook_load(it, buffer, size, result, error));
            return new Codebook(handle, context.Hooks);
        }

        /// <summary>See <see cref="Native.kvq_codebook_save"/>.</summary>
        /// <returns>The bytes of a file.</returns>
        public byte[] Save()
        {
            IntPtr it = Enter();
            try
            {
                return Files.Save((buffer, capacity, size, error) =>
                                  Native.kvq_codebook_save(it, buffer, capacity, size, error), Hooks);
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>See <see cref="Native.kvq_codebook_describe"/>.</summary>
        /// <returns>Shape and quality of the codebooks.</returns>
        public CodebookInfo Describe()
        {
            var error = Call.Error();
            var info = new kvq_codebook_info { struct_size = (uint)sizeof(kvq_codebook_info) };
            IntPtr it = Enter();
            try
            {
                Call.Check(Native.kvq_codebook_describe(it, &info, &error), &error, Hooks);
                return new CodebookInfo(&info);
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>See <see cref="Native.kvq_codebook_describe_layer"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <returns>The description of the layer.</returns>
        public CodebookLayerInfo DescribeLayer(int layer)
        {
            var error = Call.Error();
            var info = new kvq_codebook_layer_info { struct_size = (uint)sizeof(kvq_codebook_layer_info) };
            IntPtr it = Enter();
            try
            {
                Call.Check(Native.kvq_codebook_describe_layer(it, layer, &info, &error), &error, Hooks);
                return new CodebookLayerInfo(&info);
            }
            finally
            {
                Leave();
            }
        }
    }
}
