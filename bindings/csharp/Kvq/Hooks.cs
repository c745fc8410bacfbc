using System;
using System.Collections.Concurrent;
using System.Collections.Generic;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;
using System.Threading;
using Kvq.Raw;

namespace Kvq
{
    /// Ahead-of-time compilers (Unity's IL2CPP) find functions that native code calls by this name.
    [AttributeUsage(AttributeTargets.Method)]
    sealed class MonoPInvokeCallbackAttribute : Attribute
    {
        public MonoPInvokeCallbackAttribute(Type type) { }
    }

    /// A context's hooks. The library calls the static methods below with a GCHandle of this object as `user`, which
    /// keeps everything alive until `released` has been called. Exceptions stop here and are thrown again by the call
    /// that ran the hook or, if that is unknown, by the next one that returns.
    sealed unsafe class Hooks
    {
        static readonly kvq_allocate_hook AllocateHook = OnAllocate;
        static readonly kvq_free_hook FreeHook = OnFree;
        static readonly kvq_log_hook LogHook = OnLog;
        static readonly kvq_parallel_for_hook ParallelForHook = OnParallelFor;
        static readonly kvq_released_hook ReleasedHook = OnReleased;
        static readonly kvq_device_allocate_hook DeviceAllocateHook = OnDeviceAllocate;
        static readonly kvq_device_free_hook DeviceFreeHook = OnDeviceFree;
        static readonly ConcurrentDictionary<IntPtr, kvq_parallel_body> Bodies =
            new ConcurrentDictionary<IntPtr, kvq_parallel_body>();

        readonly ContextOptions options;
        readonly List<KeyValuePair<int, ExceptionDispatchInfo>> thrown =
            new List<KeyValuePair<int, ExceptionDispatchInfo>>(); // by threads of calls; 0 if unknown
        int waiting; // how many were thrown
        int running;
        GCHandle self;

        Hooks(ContextOptions options) => this.options = options;

        internal static Hooks Of(ContextOptions options, kvq_context_options* raw)
        {
            Together(options.Allocate, options.Free, "Allocate", "Free");
            Together(options.DeviceAllocate, options.DeviceFree, "DeviceAllocate", "DeviceFree");
            var hooks = new Hooks(options.Copy());
            if (options.Allocate == null && options.Log == null && options.ParallelFor == null &&
                options.Released == null && options.DeviceAllocate == null) return hooks;
            hooks.self = GCHandle.Alloc(hooks);
            IntPtr user = GCHandle.ToIntPtr(hooks.self);
            if (options.Allocate != null)
            {
                raw->allocate = Marshal.GetFunctionPointerForDelegate(AllocateHook);
                raw->free = Marshal.GetFunctionPointerForDelegate(FreeHook);
                raw->allocator_user = user;
            }
            if (options.DeviceAllocate != null)
            {
                raw->device_allocate = Marshal.GetFunctionPointerForDelegate(DeviceAllocateHook);
                raw->device_free = Marshal.GetFunctionPointerForDelegate(DeviceFreeHook);
                raw->device_allocator_user = user;
            }
            if (options.Log != null)
            {
                raw->log = Marshal.GetFunctionPointerForDelegate(LogHook);
                raw->log_user = user;
            }
            if (options.ParallelFor != null)
            {
                raw->parallel_for = Marshal.GetFunctionPointerForDelegate(ParallelForHook);
                raw->parallel_for_user = user;
            }
            raw->released = Marshal.GetFunctionPointerForDelegate(ReleasedHook);
            raw->released_user = user;
            return hooks;
        }

        static void Together(Delegate one, Delegate other, string name, string otherName)
        {
            if ((one == null) != (other == null))
                throw new ArgumentException((one == null ? name : otherName) + " is null but " +
                                            (one == null ? otherName : name) + " is not", "options");
        }

        /// Frees the hooks of a context that could not be created, for which `released` is not called.
        internal void Free()
        {
            if (self.IsAllocated) self.Free();
        }

        /// Throws the exception of a hook that ran in this thread's call, or in an unknown one.
        internal void Rethrow()
        {
            if (Volatile.Read(ref waiting) > 0) RethrowFirst();
        }

        void RethrowFirst()
        {
            int thread = Thread.CurrentThread.ManagedThreadId;
            ExceptionDispatchInfo first;
            lock (thrown)
            {
                int found = thrown.FindIndex(one => one.Key == thread || one.Key == 0);
                if (found < 0) return;
                first = thrown[found].Value;
                thrown.RemoveAt(found);
                Volatile.Write(ref waiting, thrown.Count);
            }
            first.Throw();
        }

        /// Whether this thread runs a hook of the context, or was started by one that still runs.
        internal bool AreRunning => Volatile.Read(ref running) > 0 && RunningHook.Of(this) != null;

        /// Called while a hook runs.
        internal RunningHook Run()
        {
            Interlocked.Increment(ref running);
            return new RunningHook(this, CallingThread);
        }

        internal void Ran() => Interlocked.Decrement(ref running);

        /// Thread of the call that this hook is part of; 0 if unknown.
        int CallingThread
        {
            get
            {
                if (Call.IsRunning) return Thread.CurrentThread.ManagedThreadId;
                RunningHook outer = RunningHook.Of(this);
                return outer == null ? 0 : outer.CallingThread;
            }
        }

        static Hooks From(IntPtr user) => (Hooks)GCHandle.FromIntPtr(user).Target;

        /// Keeps the first exception of each call.
        IntPtr Keep(Exception exception)
        {
            int thread = CallingThread;
            lock (thrown)
            {
                if (thrown.Exists(one => one.Key == thread)) return IntPtr.Zero;
                thrown.Add(new KeyValuePair<int, ExceptionDispatchInfo>(thread,
                    ExceptionDispatchInfo.Capture(exception)));
                Volatile.Write(ref waiting, thrown.Count);
            }
            return IntPtr.Zero;
        }

        [MonoPInvokeCallback(typeof(kvq_allocate_hook))]
        static IntPtr OnAllocate(IntPtr user, UIntPtr bytes, UIntPtr alignment)
        {
            Hooks hooks = From(user);
            try { using (hooks.Run()) return hooks.options.Allocate((long)bytes, (long)alignment); }
            catch (Exception exception) { return hooks.Keep(exception); }
        }

        [MonoPInvokeCallback(typeof(kvq_free_hook))]
        static void OnFree(IntPtr user, IntPtr pointer, UIntPtr bytes, UIntPtr alignment)
        {
            Hooks hooks = From(user);
            try { using (hooks.Run()) hooks.options.Free(pointer, (long)bytes, (long)alignment); }
            catch (Exception exception) { hooks.Keep(exception); }
        }

        [MonoPInvokeCallback(typeof(kvq_device_allocate_hook))]
        static IntPtr OnDeviceAllocate(IntPtr user, UIntPtr bytes, IntPtr stream)
        {
            Hooks hooks = From(user);
            try { using (hooks.Run()) return hooks.options.DeviceAllocate((long)bytes, stream); }
            catch (Exception exception) { return hooks.Keep(exception); }
        }

        [MonoPInvokeCallback(typeof(kvq_device_free_hook))]
        static void OnDeviceFree(IntPtr user, IntPtr pointer, UIntPtr bytes, IntPtr stream)
        {
            Hooks hooks = From(user);
            try { using (hooks.Run()) hooks.options.DeviceFree(pointer, (long)bytes, stream); }
            catch (Exception exception) { hooks.Keep(exception); }
        }

        [MonoPInvokeCallback(typeof(kvq_log_hook))]
        static void OnLog(IntPtr user, LogLevel level, byte* message)
        {
            Hooks hooks = From(user);
            try { using (hooks.Run()) hooks.options.Log(level, Text.Read(message)); }
            catch (Exception exception) { hooks.Keep(exception); }
        }

        [MonoPInvokeCallback(typeof(kvq_parallel_for_hook))]
        static int OnParallelFor(IntPtr user, int n, IntPtr body, IntPtr argument)
        {
            Hooks hooks = From(user);
            try
            {
                // The library has few of these functions and never frees them: their delegates are created once.
                var call = Bodies.GetOrAdd(body, it => Marshal.GetDelegateForFunctionPointer<kvq_parallel_body>(it));
                var loop = new Loop(call, argument, n);
                try
                {
                    using (hooks.Run()) hooks.options.ParallelFor(n, loop.Run);
                }
                finally
                {
                    loop.Over();
                }
                return 0;
            }
            catch (Exception exception)
            {
                hooks.Keep(exception);
                return -1;
            }
        }

        [MonoPInvokeCallback(typeof(kvq_released_hook))]
        static void OnReleased(IntPtr user)
        {
            Hooks hooks = From(user);
            try { using (hooks.Run()) if (hooks.options.Released != null) hooks.options.Released(); }
            catch (Exception exception) { hooks.Keep(exception); }
            hooks.self.Free();
        }

        /// One parallel loop: its body is valid only while the hook runs.
        sealed class Loop
        {
            readonly kvq_parallel_body body;
            readonly IntPtr argument;
            readonly int n;
            readonly int[] begun;
            int running;
            bool over;

            internal Loop(kvq_parallel_body body, IntPtr argument, int n)
            {
                this.body = body;
                this.argument = argument;
                this.n = n;
                begun = new int[n];
            }

            internal void Run(int index)
            {
                if (index < 0 || index >= n)
                    throw new ArgumentOutOfRangeException(nameof(index), index, "of a loop of " + n);
                lock (begun)
                {
                    if (over) throw new InvalidOperationException("ParallelFor has returned: the loop is over");
                    if (begun[index]++ != 0) throw new InvalidOperationException("index " + index + " was run already");
                    ++running;
                }
                body(argument, index);
                lock (begun)
                    if (--running == 0) Monitor.PulseAll(begun);
            }

            /// Waits for work that a hook started but did not wait for.
            internal void Over()
            {
                lock (begun)
                {
                    over = true;
                    while (running > 0) Monitor.Wait(begun);
                }
            }
        }
    }

    /// A hook while it runs. Threads and tasks that it starts know it, too.
    sealed class RunningHook : IDisposable
    {
        static readonly AsyncLocal<RunningHook> Current = new AsyncLocal<RunningHook>();

        readonly Hooks hooks;
        readonly RunningHook outer;
        volatile bool over;

        internal RunningHook(Hooks hooks, int callingThread)
        {
            this.hooks = hooks;
            CallingThread = callingThread;
            outer = Current.Value;
            Current.Value = this;
        }

        internal int CallingThread { get; }

        /// The running hook of this thread, or of what started it, that is one of these; null if there is none.
        internal static RunningHook Of(Hooks hooks)
        {
            RunningHook it = Current.Value;
            while (it != null && (it.over || it.hooks != hooks)) it = it.outer;
            return it;
        }

        public void Dispose()
        {
            over = true;
            Current.Value = outer;
            hooks.Ran();
        }
    }

    /// The progress hook of one call.
    sealed class Progress : IDisposable
    {
        static readonly kvq_progress_hook Hook = OnProgress;

        readonly Func<double, bool> ask;
        readonly Hooks hooks;
        ExceptionDispatchInfo thrown;
        GCHandle self;

        internal Progress(Func<double, bool> ask, Hooks hooks)
        {
            this.ask = ask;
            this.hooks = hooks;
            if (ask != null) self = GCHandle.Alloc(this);
        }

        internal IntPtr Function => ask == null ? IntPtr.Zero : Marshal.GetFunctionPointerForDelegate(Hook);

        internal IntPtr User => ask == null ? IntPtr.Zero : GCHandle.ToIntPtr(self);

        internal void Rethrow()
        {
            if (thrown != null) thrown.Throw();
        }

        public void Dispose()
        {
            if (self.IsAllocated) self.Free();
        }

        [MonoPInvokeCallback(typeof(kvq_progress_hook))]
        static int OnProgress(IntPtr user, double done)
        {
            var it = (Progress)GCHandle.FromIntPtr(user).Target;
            try
            {
                using (it.hooks.Run()) return it.ask(done) ? 0 : 1;
            }
            catch (Exception exception)
            {
                it.thrown = ExceptionDispatchInfo.Capture(exception);
                return 1;
            }
        }
    }
}
