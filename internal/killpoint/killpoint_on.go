//go:build killpoints

// Package killpoint names points between two durable facts, at which a test stops or kills the process. They are
// compiled in with the build tag killpoints only; otherwise reaching one does nothing.
package killpoint

import (
	"os"
	"runtime"
	"strings"
	"syscall"
)

// Reach stops or kills this process at the point that HOLDPOINT_KILLPOINT names ("stop:POINT" or "kill:POINT"). A
// stopped process goes on when a test sends SIGCONT; it then does what it would have done.
func Reach(point string) {
	how, name, _ := strings.Cut(os.Getenv("HOLDPOINT_KILLPOINT"), ":")
	if name != point {
		return
	}
	switch how {
	case "stop":
		// A signal to the process may be taken by any thread, while this one runs on for a moment. A signal to this very
		// thread is taken before the call returns.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_, _, _ = syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(syscall.SIGSTOP))
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}

// At marks one point of a verb, as Reach(verb.point).
func At(verb, point string) { Reach(verb + "." + point) }
