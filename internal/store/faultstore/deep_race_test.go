//go:build race

package faultstore_test

// deepest is the last call of a verb in one scenario that meets a fault. Under the race detector one is what there is time for.
const deepest = 1
