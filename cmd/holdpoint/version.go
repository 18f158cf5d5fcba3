package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is what this program was built from; fields that the build did not record are empty.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Say which version this is",
		Example: examples("holdpoint version", "holdpoint version --json"),
		Args:    cobra.NoArgs,
		RunE: p.do(func(context.Context, *cobra.Command, []string) error {
			v := buildVersion()
			return p.answer(v, func(w io.Writer) { fmt.Fprintf(w, "holdpoint %s\n", v) })
		}),
	}
}

// buildVersion reads what the build recorded.
func buildVersion() version {
	v := version{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if b, ok := debug.ReadBuildInfo(); ok {
		v.Version = b.Main.Version
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Revision = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	return v
}

func (v version) String() string { return fmt.Sprintf("%s (%s, %s)", v.Version, v.Go, v.Platform) }
