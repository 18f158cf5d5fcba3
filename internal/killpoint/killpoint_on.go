//go:build killpoints

// Package killpoint names points between two durable facts, at which a test stops or kills the process. They are
// compiled in with the build tag killpoints only; otherwise reaching one does nothing.
package killpoint

import (
	"os"
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
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}
