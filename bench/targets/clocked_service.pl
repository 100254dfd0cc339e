# perl clocked_service.pl FILE: a service that writes down its own clock (clocked_service.py), until it is killed.
use strict;
use warnings;
use IO::Handle;
use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID);

open(my $out, '>>', $ARGV[0]) or die;
$out->autoflush(1);

sub count_words {
    my %found;
    $found{ $_ % 97 }++ for 1 .. 4000;
    return scalar %found;
}

while (1) {
    count_words();
    printf $out "%.0f %.0f\n", 1e9 * clock_gettime(CLOCK_MONOTONIC), 1e9 * clock_gettime(CLOCK_PROCESS_CPUTIME_ID);
    sleep 0.025;
}
