package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/demo"
)

// demoCommand plays the main job. It always uses a store and key of its own, whatever HOLDPOINT_DB says.
func (p *program) demoCommand() *cobra.Command {
	var auto bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Play the main job on embedded SQLite, with nothing to configure",
		Long: "Starts a server of its own, a mirror provider that counts what really arrived, and a sample policy; plays real-shaped deliveries\n" +
			"with duplicates, a changed payload, a provider that accepts and then stalls, and a kill -9; and prints where to decide.\n" +
			"With --auto it decides by itself, prints what happened and exits 0 only if every invariant held.",
		Example: examples("holdpoint demo", "holdpoint demo --auto"),
		Args:    cobra.NoArgs,
	}
	c.Flags().BoolVar(&auto, "auto", false, "decide by itself, print the table and stop")
	c.RunE = p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		binary, err := os.Executable()
		if err != nil {
			return err
		}
		out := p.out
		if p.json {
			out = io.Discard
		}
		r, err := demo.Run(ctx, demo.Options{Binary: binary, Auto: auto, Out: out})
		if err != nil || !auto {
			return err
		}
		if err := p.answer(r, r.Print); err != nil {
			return err
		}
		if !r.AllHeld() {
			return holdpoint.Errorf(holdpoint.CodeInternal, "an invariant did not hold; the table above says which")
		}
		return nil
	})
	return c
}
