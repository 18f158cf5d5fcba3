//go:build !race

package faultstore_test

// deepest is the last call of a verb in one scenario that meets a fault. Later calls are of the same kind.
const deepest = 3
