// Command bench measures Holdpoint beside what people would pick instead, on one machine and one database server. A
// figure is one run on one machine; only ratios of one invocation mean something. README.md says how each is taken.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/caarlos0/env/v11"
)

// settings come from the environment, which `make bench` passes on.
type settings struct {
	Runs      int           `env:"RUNS" envDefault:"5"`        // interleaved runs of each side; the median counts
	DB        string        `env:"DB" envDefault:"both"`       // postgres, sqlite or both
	Only      []string      `env:"ONLY"`                       // of measurements; none: all
	Window    time.Duration `env:"WINDOW" envDefault:"10s"`    // of one timed run
	Warm      time.Duration `env:"WARM" envDefault:"2s"`       // before the window, not counted
	Lanes     int           `env:"LANES" envDefault:"64"`      // clients, or runs in flight
	Backlog   int           `env:"BACKLOG" envDefault:"20000"` // effects of one dispatch
	Size      int           `env:"SIZE" envDefault:"5000000"`  // finished runs of the large store
	Starts    int           `env:"STARTS" envDefault:"5"`
	LogIns    int           `env:"LOGINS" envDefault:"20"`
	Decisions int           `env:"DECISIONS" envDefault:"200"`
	Quiet     time.Duration `env:"QUIET" envDefault:"60s"` // before resident memory is read
	Binary    string        `env:"HOLDPOINT_BIN" envDefault:"../bin/holdpoint"`
	Dir       string        `env:"BENCH_DIR"` // where the data goes, on a real disk; a temporary directory
}

// measurement is one comparison on one kind of database.
type measurement struct {
	name    string
	measure func(context.Context, *bench, database) error
	on      []string
}

var measurements = []measurement{
	{"claims", measureClaims, []string{"postgres", "sqlite"}},
	{"run", measureRuns, []string{"postgres", "sqlite"}},
	{"dispatch", measureDispatch, []string{"postgres", "sqlite"}},
	{"size", measureSize, []string{"postgres"}},
	{"footprint", measureFootprint, []string{"sqlite"}},
}

// bench is what all measurements share.
type bench struct {
	settings
	dir string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	b := &bench{}
	if err := env.Parse(&b.settings); err != nil {
		return err
	}
	for _, name := range b.Only {
		if !slices.ContainsFunc(measurements, func(m measurement) bool { return m.name == name }) {
			return fmt.Errorf("ONLY=%s is no measurement", name)
		}
	}
	if b.Binary, err = filepath.Abs(b.Binary); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp(b.Dir, "holdpoint-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := os.Chmod(b.dir, 0o755); err != nil { // the cluster's owner passes through
		return err
	}
	describeMachine(b.dir)
	if b.DB != "sqlite" {
		pg, err := startPostgres(ctx, b.dir)
		if err != nil {
			return err
		}
		defer pg.stop()
		if err := b.all(ctx, pg); err != nil {
			return err
		}
	}
	if b.DB != "postgres" {
		return b.all(ctx, sqliteFiles{})
	}
	return nil
}

// all takes the wanted measurements on one kind of database.
func (b *bench) all(ctx context.Context, d database) error {
	d.describe()
	for _, m := range measurements {
		if len(b.Only) > 0 && !slices.Contains(b.Only, m.name) || !slices.Contains(m.on, d.kind()) {
			continue
		}
		if err := m.measure(ctx, b, d); err != nil {
			return fmt.Errorf("%s on %s: %w", m.name, d.kind(), err)
		}
	}
	return nil
}

// side is one of two that are compared; each call of once is one timed run on a fresh database.
type side struct {
	name string
	once func(ctx context.Context) (float64, error)
}

// compare runs both sides in turn and prints the median of each and their ratio.
func (b *bench) compare(ctx context.Context, d database, title, unit string, target float64, ours, theirs side) error {
	var us, them []float64
	for i := range b.Runs {
		for _, s := range []struct {
			side
			into *[]float64
		}{{ours, &us}, {theirs, &them}} {
			v, err := s.once(ctx)
			if err != nil {
				return fmt.Errorf("%s, run %d: %w", s.name, i+1, err)
			}
			*s.into = append(*s.into, v)
			fmt.Printf("  %s %s, run %d, %s: %.0f %s\n", d.kind(), title, i+1, s.name, v, unit)
		}
	}
	fmt.Printf("%s, %s (%d interleaved runs)\n", title, d.kind(), b.Runs)
	for _, s := range []struct {
		name string
		all  []float64
	}{{ours.name, us}, {theirs.name, them}} {
		fmt.Printf("  %-44s median %8.0f %s  min %.0f  max %.0f\n", s.name, median(s.all), unit, slices.Min(s.all), slices.Max(s.all))
	}
	fmt.Printf("  ratio of medians %.2f  (min/max %.2f … %.2f)", median(us)/median(them), slices.Min(us)/slices.Max(them), slices.Max(us)/slices.Min(them))
	if target > 0 {
		fmt.Printf("  target ≥ %.1f", target)
	}
	fmt.Print("\n\n")
	return nil
}

func median(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}
