package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func (p *program) evidenceCommand() *cobra.Command {
	show := &cobra.Command{
		Use:     "show [KEY|ID]",
		Short:   "Show the events of a run in order, or without one those of the tenant",
		Example: examples("holdpoint evidence show order-4711", "holdpoint evidence show --json"),
		Args:    cobra.MaximumNArgs(1),
		RunE: p.do(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return p.overAPI(cmd, func(r *remote) error {
				run := ""
				if len(args) > 0 {
					v, err := r.find(ctx, args[0], "")
					if err != nil {
						return err
					}
					run = v.ID
				}
				events, err := r.Evidence(ctx, run)
				if err != nil {
					return err
				}
				return p.answer(map[string]any{"events": list(events)}, func(w io.Writer) {
					rows := make([][]string, len(events))
					for i, e := range events {
						rows[i] = []string{strconv.FormatInt(e.Seq, 10), at(e.At), e.Type, strings.TrimSpace(e.Who.Kind + " " + e.Who.ID), eventData(e.Data)}
					}
					table(w, "NO | TIME | EVENT | WHO | DATA", rows)
				})
			})
		}),
	}
	apiFlags(show)
	return group("evidence", "The append-only record of what happened", examples("holdpoint evidence show order-4711"), show)
}

// eventData writes an event's data by name; it holds hashes, ids, codes and counts.
func eventData(data map[string]any) string {
	names := make([]string, 0, len(data))
	for name := range data {
		names = append(names, name)
	}
	slices.Sort(names)
	parts := make([]string, len(names))
	for i, name := range names {
		text, ok := data[name].(string)
		if !ok {
			b, err := json.Marshal(data[name])
			if err != nil {
				b = []byte("?")
			}
			text = string(b)
		} else if len(text) == sha256.Size*2 {
			text = short(text)
		}
		parts[i] = name + "=" + text
	}
	return strings.Join(parts, " ")
}
