package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func (p *program) migrateCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the store's schema up to date",
		Long:  "Brings the schema up to date, forward only. A SQLite store must not be served meanwhile.",
		Example: examples("holdpoint migrate",
			"HOLDPOINT_DB=postgres://holdpoint@db/holdpoint holdpoint migrate"),
		Args: cobra.NoArgs,
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			s, err := p.settings(cmd)
			if err != nil {
				return err
			}
			o, err := s.appOptions()
			if err != nil {
				return err
			}
			a, err := withoutLoops(ctx, o)
			if err != nil {
				return err
			}
			if err := stop(ctx, a); err != nil {
				return err
			}
			return p.answer(map[string]bool{"up_to_date": true}, func(w io.Writer) { fmt.Fprintln(w, "The schema is up to date.") })
		}),
	}
	storeFlags(c)
	return c
}
