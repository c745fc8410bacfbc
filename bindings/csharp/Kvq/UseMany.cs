using System;

namespace Kvq
{
    /// Several objects that a call uses, each entered once even if it occurs repeatedly.
    struct UseMany : IDisposable
    {
        readonly NativeObject[] sorted;

        /// `sorted` must come from Sorted.
        internal UseMany(NativeObject[] sorted, bool alone)
        {
            this.sorted = sorted;
            int entered = 0;
            try
            {
                for (; entered < sorted.Length; ++entered) sorted[entered].Enter(alone);
            }
            catch
            {
                while (entered > 0) sorted[--entered].Leave();
                throw;
            }
        }

        public void Dispose()
        {
            for (int i = sorted.Length; i > 0; --i) sorted[i - 1].Leave();
        }

        internal static NativeObject[] Sorted(NativeObject[] objects, string name)
        {
            if (objects == null) throw new ArgumentNullException(name);
            if (objects.Length == 0) throw new ArgumentException(name + " is empty", name);
            int missing = Array.IndexOf(objects, null);
            if (missing >= 0) throw new ArgumentNullException(name + "[" + missing + "]");
            var sorted = (NativeObject[])objects.Clone();
            Array.Sort(sorted, (one, other) => one.Serial.CompareTo(other.Serial));
            int n = 1;
            for (int i = 1; i < sorted.Length; ++i)
                if (sorted[i] != sorted[n - 1]) sorted[n++] = sorted[i];
            Array.Resize(ref sorted, n);
            return sorted;
        }

        internal static IntPtr[] Pointers(NativeObject[] objects) =>
            Array.ConvertAll(objects, it => it.Handle.DangerousGetHandle());
    }
}
