using System;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>Failure of a call. Every object is as it was before the call.</summary>
    public sealed class KvqException : Exception
    {
        internal unsafe KvqException(Status status, kvq_error* error)
            : base(Library.StatusName(status) + ": " + Text.Read(error->message, 256))
        {
            Status = status;
            BackendCode = error->backend_code;
        }

        /// <summary>Status of the call.</summary>
        public Status Status { get; }

        /// <summary>Name of the status, for example "KVQ_E_LIMIT".</summary>
        public string StatusName => Library.StatusName(Status);

        /// <summary>Error code of the device's library or of a hook; 0 if none.</summary>
        public int BackendCode { get; }
    }

    /// <summary>The loaded library is older than these bindings.</summary>
    public sealed class LibraryVersionException : Exception
    {
        internal LibraryVersionException(int found, string version)
            : base("libkvq " + version + " has API version " + found + "; these bindings need " + Constants.ApiVersion +
                   " or a later one")
        {
            Found = found;
            LibraryVersion = version;
        }

        /// <summary>The API version of the library.</summary>
        public int Found { get; }

        /// <summary>The API version that these bindings require.</summary>
        public int Needed => Constants.ApiVersion;

        /// <summary>Version of the library, "major.minor.patch".</summary>
        public string LibraryVersion { get; }
    }
}
