//go:build race

package kvq_test

// The race detector makes pools forget at random.
const raceEnabled = true
