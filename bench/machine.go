package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
)

// peers are the modules whose versions a figure names.
var peers = []string{"github.com/dbos-inc/dbos-transact-golang", "github.com/riverqueue/river", "github.com/jackc/pgx/v5", "modernc.org/sqlite"}

// describeMachine prints what a figure depends on.
func describeMachine(dir string) {
	fmt.Printf("machine: %s, %d cores, %s RAM, kernel %s, data on %s\n", field("/proc/cpuinfo", "model name"), runtime.NumCPU(),
		field("/proc/meminfo", "MemTotal"), first("/proc/sys/kernel/osrelease"), fileSystem(dir))
	fmt.Printf("versions: %s", runtime.Version())
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			for _, p := range peers {
				if m.Path == p {
					fmt.Printf(", %s %s", strings.TrimPrefix(p, "github.com/"), m.Version)
				}
			}
		}
	}
	commit, _ := exec.Command("git", "rev-parse", "--short", "HEAD").Output() // no repository: no commit to name
	fmt.Printf(", holdpoint at %s\n", strings.TrimSpace(string(commit)))
}

// field gives the value of the first line "name : value" of a file.
func field(path, name string) string {
	body, _ := os.ReadFile(path)
	for line := range strings.Lines(string(body)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

func first(path string) string {
	body, _ := os.ReadFile(path)
	return strings.TrimSpace(string(body))
}

// fileSystem names the kind of file system below dir.
func fileSystem(dir string) string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return err.Error()
	}
	switch fs.Type {
	case 0xEF53:
		return "ext4"
	case 0x58465342:
		return "xfs"
	case 0x9123683E:
		return "btrfs"
	case 0x01021994:
		return "tmpfs (no disk: these figures say nothing about durability)"
	case 0x794c7630:
		return "overlayfs"
	}
	return fmt.Sprintf("file system %#x", fs.Type)
}
