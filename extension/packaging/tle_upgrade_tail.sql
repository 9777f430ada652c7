$_pulse_tle_$
);
