//go:build killpoints

// Package killpoint names points between two durable facts, at which a test stops or kills the process. They are
// compiled in with the build tag killpoints only; otherwise reaching one does nothing.
package killpoint

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// order is what HOLDPOINT_KILLPOINT asks for: "stop:POINT" or "kill:POINT", with "#N" for the Nth time only.
type order struct {
	how, point string
	nth        int64 // 0: each time
}

var (
	given = sync.OnceValue(func() order { return parse(os.Getenv("HOLDPOINT_KILLPOINT")) })
	hits  atomic.Int64
)

func parse(text string) order {
	how, rest, _ := strings.Cut(text, ":")
	point, number, _ := strings.Cut(rest, "#")
	nth, _ := strconv.ParseInt(number, 10, 64)
	return order{how, point, nth}
}

// Reach stops or kills this process at the point that HOLDPOINT_KILLPOINT names. A stopped process goes on when a test
// sends SIGCONT; it then does what it would have done.
func Reach(point string) {
	o := given()
	if o.point != point || o.nth > 0 && hits.Add(1) != o.nth {
		return
	}
	switch o.how {
	case "stop":
		// A signal to the process may be taken by any thread, while this one runs on for a moment. A signal to this very
		// thread is taken before the call returns.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_, _, _ = syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(syscall.SIGSTOP))
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // no line after the point is run
	}
}

// At marks one point of a verb of the store, as Reach("store." + Name(verb) + "." + point).
func At(verb, point string) { Reach("store." + Name(verb) + "." + point) }
