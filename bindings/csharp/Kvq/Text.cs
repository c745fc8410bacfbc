using System;
using System.Globalization;
using System.Text;

namespace Kvq
{
    /// Strings of the C API are UTF-8: invalid text from the library is replaced, invalid text for it is refused.
    static unsafe class Text
    {
        static readonly Encoding Strict = new UTF8Encoding(false, true);

        /// Returns the text with a NUL at the end; null for null.
        internal static byte[] Bytes(string text, string argument)
        {
            if (text == null) return null;
            int nul = text.IndexOf('\0');
            if (nul >= 0) throw new ArgumentException(argument + " has a NUL character at " + nul, argument);
            var bytes = new byte[Strict.GetByteCount(text) + 1];
            Strict.GetBytes(text, 0, text.Length, bytes, 0);
            return bytes;
        }

        internal static byte[] Needed(string text, string argument)
        {
            if (text == null) throw new ArgumentNullException(argument);
            return Bytes(text, argument);
        }

        /// Returns "Usage { Scalars = 256, … }" from a name and alternating names and values, in every culture.
        internal static string Shown(string name, params object[] properties)
        {
            var all = new StringBuilder(name).Append(" {");
            for (int i = 0; i < properties.Length; i += 2)
            {
                object value = properties[i + 1];
                all.Append(i == 0 ? " " : ", ").Append(properties[i]).Append(" = ").Append(value is double[] many
                    ? "[" + string.Join(", ", Array.ConvertAll(many, it => Shown(it))) + "]" : Shown(value));
            }
            return all.Append(" }").ToString();
        }

        static string Shown(object value) => Convert.ToString(value, CultureInfo.InvariantCulture);

        internal static string Read(byte* text) => Read(text, int.MaxValue);

        internal static string Read(byte* text, int atMost)
        {
            if (text == null) return null;
            int n = 0;
            while (n < atMost && text[n] != 0) ++n;
            return n == 0 ? "" : Encoding.UTF8.GetString(text, n);
        }
    }
}
