using System;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>CommVQ codebooks for the layers of one model. Immutable; caches that use it share it.</summary>
    public sealed unsafe class Codebook : NativeObject
    {
        internal Codebook(CodebookHandle handle, Hooks hooks) : base(handle, hooks) { }

        /// <summary>See <see cref="Native.kvq_codebook_load"/>.</summary>
        /// <param name="context">Where its memory comes from.</param>
        /// <param name="file">Bytes of a file, as <see cref="Save"/> writes it.</param>
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
        /// <returns>What the codebooks are made for and how well they do.</returns>
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
        /// <returns>One layer of the codebooks.</returns>
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
