//go:build !race

package kvq_test

const raceEnabled = false
