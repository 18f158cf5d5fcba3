// Package simtest runs the whole application, with fake people, fake workflows and a fake provider, over SQLite in a bubble
// of package testing/synctest, from one seed. Every write to the store and every request on the wire waits at a turnstile
// until the driver lets it go on; the driver alone decides, by the seed, who moves next, which process dies where, which
// answer is lost and who is held up past a lease. A seed therefore replays the same. After each step what stands is held to
// the invariants of the specification.
//
//	go test ./internal/simtest                                         # the seeds of every run
//	HOLDPOINT_SIM_SEED=123 go test -run TestSeed$ ./internal/simtest   # one seed, with its last steps
//	make sim SEEDS=5000 STEPS=200                                      # a long run
package simtest
