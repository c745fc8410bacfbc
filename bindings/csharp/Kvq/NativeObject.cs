using System;
using System.Runtime.InteropServices;
using System.Threading;

namespace Kvq
{
    /// A handle of the library; the finalizer destroys it if it was not disposed of.
    abstract class Handle : SafeHandle
    {
        NativeObject owner;

        protected Handle() : base(IntPtr.Zero, true) { }

        public override bool IsInvalid => handle == IntPtr.Zero;

        internal void Take(IntPtr it) => SetHandle(it);

        internal void Belong(NativeObject it) => owner = it;

        /// Destroys the handle, which its owner does not use any more.
        internal void End()
        {
            owner = null;
            Dispose();
        }

        /// A program that disposes of the handle disposes of its owner, which waits for calls.
        protected override void Dispose(bool disposing)
        {
            if (disposing && owner != null) owner.Dispose();
            else base.Dispose(disposing);
        }

        protected abstract void Destroy(IntPtr it);

        protected override bool ReleaseHandle()
        {
            // Process exit frees all memory, and hooks can no longer run managed code.
            if (!Environment.HasShutdownStarted) Destroy(handle);
            return true;
        }
    }

    /// Holds the objects that a call uses until it ends.
    readonly struct Use : IDisposable
    {
        readonly IntPtr pointer;
        readonly NativeObject one, other;

        internal Use(IntPtr pointer, NativeObject one, NativeObject other = null)
        {
            this.pointer = pointer;
            this.one = one;
            this.other = other;
        }

        public static implicit operator IntPtr(Use it) => it.pointer;

        public void Dispose()
        {
            one.Leave();
            if (other != null) other.Leave();
        }
    }

    /// <summary>An object of the library. Objects may be disposed of in any order and more than once; whatever other
    /// objects still need is freed with the last of them. Calls that need exclusive use wait for each other; others run
    /// concurrently.</summary>
    public abstract class NativeObject : IDisposable
    {
        static long count;

        readonly Handle handle;
        int users; // -1: one exclusive user
        int waiting;
        bool closed;

        internal NativeObject(Handle handle, Hooks hooks)
        {
            this.handle = handle;
            Hooks = hooks;
            handle.Belong(this);
            Serial = Interlocked.Increment(ref count);
        }

        /// <summary>The handle, for calls to <see cref="Raw.Native"/>: it must not be used after
        /// <see cref="Dispose"/>. Disposing of it disposes of the object.</summary>
        public SafeHandle Handle => handle;

        /// <summary>Whether the object has been disposed of.</summary>
        public bool IsClosed => Volatile.Read(ref closed);

        internal Hooks Hooks { get; }

        /// Calls enter objects in the order of their numbers, so that they cannot deadlock.
        internal long Serial { get; }

        /// <summary>Destroy the object, after calls that use it on other threads; another thread does so if a hook of
        /// its context asks for it.</summary>
        public void Dispose()
        {
            bool free;
            lock (handle)
            {
                if (closed) return;
                closed = true;
                free = users == 0;
                if (waiting > 0) Monitor.PulseAll(handle);
            }
            if (!free) return;
            if (Hooks.AreRunning)
            {
                ThreadPool.UnsafeQueueUserWorkItem(it => ((Handle)it).End(), handle);
                return;
            }
            handle.End();
            Hooks.Rethrow();
        }

        /// Every call uses its object. `alone`: the call needs exclusive use of the object.
        internal virtual Use Use(bool alone = false) => new Use(Enter(alone), this);

        internal IntPtr Enter(bool alone = false, bool evenClosed = false)
        {
            // The hook would wait for its own call, or the library for itself.
            if (!evenClosed && Hooks.AreRunning)
                throw new InvalidOperationException("A hook may not use the " + GetType().Name +
                    ", which is of its own context");
            lock (handle)
            {
                while (true)
                {
                    if (closed && !evenClosed) throw new ObjectDisposedException(GetType().Name);
                    if (users == 0 || users > 0 && !alone) break;
                    ++waiting;
                    Monitor.Wait(handle);
                    --waiting;
                }
                users = alone ? -1 : users + 1;
                Call.Begin();
                return handle.DangerousGetHandle();
            }
        }

        internal void Leave()
        {
            bool free;
            lock (handle)
            {
                users = users < 0 ? 0 : users - 1;
                free = closed && users == 0;
                if (waiting > 0) Monitor.PulseAll(handle);
            }
            Call.End();
            if (free) handle.End();
        }
    }
}
